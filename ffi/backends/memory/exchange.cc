#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/memory/memory_backend.h"
#include "execution/numbering.h"
#include "execution/pipeline.h"
#include "execution/placement.h"
#include "execution/prepared.h"
#include "execution/sum_job.h"
#include "rendezvous/rendezvous.h"
#include "runtime/recorder.h"
#include "runtime/reused.h"

namespace fastjax::memory {
namespace {

// Below this, waking the pool costs more than it saves.
constexpr int64_t kInlineBytes = 128 << 10;

// What one running exchange works in.
struct Work {
  Launch launch;
  Rendezvous<ExchangeArgs>::Session* session = nullptr;
  Prepared prepared{true};
  Placement placement;
  std::vector<CopyJob::OfStep> copies;  // in the order of the plans
  Numbering pipeline_steps;             // those that have copies
  CopyJob copy;
  SumJob sum;
  PoolJob* job = nullptr;  // of the two, what is to be done
};

class MemoryExchange final : public Rendezvous<ExchangeArgs> {
 public:
  MemoryExchange(const std::shared_ptr<const CallSite>& call_site, ExchangeOptions options)
      : Rendezvous(call_site), options_(std::move(options)), recorder_(call_site, options_, false) {}

 private:
  void OnFailed(const Session& /*session*/, const Status& /*why*/) override { recorder_.Fail(); }

  void Execute(Session* session, int32_t last) override {
    Work* work = nullptr;
    const Status taken = Guarded([&] { work = works_.Take(); });
    if (!taken.ok()) {
      recorder_.Fail();
      return session->Finish(taken, last);
    }
    work->launch = recorder_.Begin();
    work->session = session;
    const int64_t order = NextLaunch();
    const Status status = Guarded([&] { return Prepare(work); });
    if (status.ok() && work->job->bytes() > kInlineBytes && HandOver(order, work)) return;
    if (status.ok()) work->job->RunInline();
    End(work, status, last);
  }

  // Has the pool do the work and end the session; false where the pool cannot take it. The captures are small enough
  // for std::function to hold without allocating. Until it ends, the session keeps this alive.
  bool HandOver(int64_t order, Work* work) {
    return Guarded([&] { CopyPool::Get().Run(work->job, order, [this, work] { End(work, Status::Ok(), -1); }); }).ok();
  }

  void End(Work* work, const Status& status, int32_t here) {
    recorder_.End(work->launch, status, status.ok() ? work->prepared.summary() : LaunchSummary{});
    work->placement.Release();
    Session* const session = work->session;
    works_.Return(work);
    session->Finish(status, here);
  }

  Status Prepare(Work* work) const {
    const auto& args = work->session->args();
    bool found_by_all = true;  // there are no other processes
    Status status = work->prepared.Load(site(), work->session->group(), args, options_, site().rank_of, &found_by_all,
                                        &work->launch);
    if (!status.ok()) return status;
    GroupTraffic& traffic = work->prepared.traffic();
    if (options_.reverse && (options_.indexed || traffic.DestinationsOverlap())) return Sum(work, args);
    return Copy(work, args);
  }

  // All devices share one memory, so everything is copied, in a step of the job for each pipeline step. Nothing needs
  // to know which copies are of one Step: no gates are waited for, and no messages sent.
  Status Copy(Work* work, const std::vector<ExchangeArgs>& args) const {
    work->job = &work->copy;
    work->copy.Clear();
    work->copies.clear();
    work->pipeline_steps.Clear();
    const DevicePlans& plans = work->prepared.plans();
    Placement& placement = work->placement;
    placement.Begin(site(), args, args.front().row_bytes, work->prepared.traffic());
    const Pipeline pipeline(plans);
    if (!pipeline.possible()) return placement.WrongPlan();
    if (Status status = placement.TakeStaging(plans); !status.ok()) return status;
    const bool fits = work->prepared.ForEachTransfer(options_, [&](const planner::Transfer& transfer) {
      const int64_t pipeline_step = pipeline.StepOf(transfer.phase, transfer.stage);
      if (pipeline_step >= Pipeline::kMaxSteps || !placement.Allows(transfer)) return false;
      const auto step = static_cast<int32_t>(pipeline_step);
      work->pipeline_steps.Add(step);
      placement.ForEachCopy(transfer, [&](const CopyOp& op) { work->copies.emplace_back() = {step, op}; });
      return true;
    });
    if (!fits) return placement.WrongPlan();
    work->pipeline_steps.Number();
    for (CopyJob::OfStep& copy : work->copies) copy.step = work->pipeline_steps.NumberOf(copy.step);
    work->copy.AddSteps(work->copies, work->pipeline_steps.count());
    return Status::Ok();
  }

  // Rows come straight from their origins, without staging.
  Status Sum(Work* work, const std::vector<ExchangeArgs>& args) const {
    if (Status status = CheckSummable(site(), args.front()); !status.ok()) return status;
    work->job = &work->sum;
    work->sum.Begin(args.front());
    for (int32_t target = 0; target < site().group_size; ++target) {
      const auto source = [&](int32_t origin, const Run& run, int64_t) -> kernels::Summand {
        return args[site().position_at[origin]].SummandAt(run.source_row);
      };
      work->sum.Add(work->prepared.traffic(), target, args[site().position_at[target]], source);
    }
    return Status::Ok();
  }

  const ExchangeOptions options_;
  Recorder recorder_;
  Reused<Work> works_;
};

}  // namespace

std::shared_ptr<Exchange> OpenExchange(const std::shared_ptr<const CallSite>& site, ExchangeOptions options) {
  return OpenRendezvous<MemoryExchange>(site, std::move(options));
}

}  // namespace fastjax::memory
