#include "backends/memory/job_builder.h"

#include <algorithm>
#include <cstdint>

namespace fastjax::memory {
namespace {

// No stage of a plan is without a transfer.
bool StagesHaveTransfers(const DevicePlans& plans) {
  int64_t stages = 0;
  int64_t transfers = 0;
  for (const DevicePlan& plan : plans) {
    stages = std::max<int64_t>(stages, plan.stages);
    transfers += static_cast<int64_t>(plan.transfers.size());
  }
  return stages <= transfers;
}

}  // namespace

Status JobBuilder::Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const DevicePlans& plans,
                         const GroupTraffic& traffic) {
  job_.Clear();
  placement_.Begin(site, args, args.front().row_bytes, traffic);
  if (!StagesHaveTransfers(plans)) return placement_.Refuse();
  if (Status status = placement_.TakeStaging(plans); !status.ok()) return status;
  reach_.here.assign(plans.size(), 1);
  reach_.domain_of.assign(plans.size(), 0);
  if (Status status = lowering_.Lower(reach_, plans, placement_); !status.ok()) return status;
  int32_t pipeline_step = 0;
  for (const int32_t i : lowering_.ByPipelineStep()) {
    const Step& step = lowering_.steps()[static_cast<size_t>(i)];
    if (step.pipeline_step != pipeline_step) job_.EndStep();
    pipeline_step = step.pipeline_step;
    for (const planner::Transfer& transfer : lowering_.TransfersOf(step)) {
      placement_.ForEachCopy(transfer, [this](const CopyOp& op) { job_.Add(op); });
    }
  }
  job_.EndStep();
  return Status::Ok();
}

}  // namespace fastjax::memory
