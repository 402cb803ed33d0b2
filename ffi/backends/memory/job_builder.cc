#include "backends/memory/job_builder.h"

namespace fastjax::memory {

Status JobBuilder::Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const DevicePlans& plans,
                         const GroupTraffic& traffic) {
  job_.Clear();
  copies_.clear();
  pipeline_steps_.Clear();
  placement_.Begin(site, args, args.front().row_bytes, traffic);
  const Pipeline pipeline(plans);
  if (!pipeline.possible()) return placement_.Refuse();
  if (Status status = placement_.TakeStaging(plans); !status.ok()) return status;
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    if (!Take(plans[static_cast<size_t>(rank)], rank, pipeline)) return placement_.Refuse();
  }
  pipeline_steps_.Number();
  for (CopyJob::OfStep& copy : copies_) copy.step = pipeline_steps_.NumberOf(copy.step);
  job_.AddSteps(copies_, pipeline_steps_.count());
  return Status::Ok();
}

// All devices are here and share one memory, so everything is copied. Nothing needs to know which copies are of one
// Step: no gates are waited for, and no messages sent.
bool JobBuilder::Take(const DevicePlan& plan, int32_t rank, const Pipeline& pipeline) {
  return plan.ForEachTransfer([&](const planner::Transfer& transfer) {
    // A transfer stands in the plans of both its ends; the sender's counts.
    if (transfer.src != rank) return true;
    const int64_t pipeline_step = pipeline.StepOf(transfer.phase, transfer.stage);
    if (pipeline_step >= Pipeline::kMaxSteps || !placement_.Allows(transfer)) return false;
    const auto step = static_cast<int32_t>(pipeline_step);
    pipeline_steps_.Add(step);
    placement_.ForEachCopy(transfer, [&](const CopyOp& op) { copies_.emplace_back() = {step, op}; });
    return true;
  });
}

}  // namespace fastjax::memory
