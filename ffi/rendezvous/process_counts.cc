#include "exchange/counts.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/counts.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_launch.h"
#include "rendezvous/rendezvous.h"
#include "runtime/fault_points.h"
#include "runtime/recorder.h"

namespace fastjax {
namespace {

// Every process sums the same counts and makes the same plan; each writes the tables of its own devices.
class CountsLaunch final : public ProcessLaunch<CountsArgs> {
 public:
  CountsLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Recorder> recorder,
               std::shared_ptr<const PlanFunction> plan)
      : ProcessLaunch(std::move(site), std::move(recorder)), plan_(std::move(plan)) {}

  void OnMet() override {
    FaultPoints::Get().At(order(), "met");
    launch()->Restart();
    PlanBesideOthers([this] { return Plan(); }, [this](const Status& status) { OnPlanned(status); });
  }
  void OnFailed(const Status& why) override {
    if (!Defers(why)) Finish(why);
  }

 private:
  void OnPlanned(const Status& status) {
    if (process_session().failed) return Finish(deferred());
    if (status.ok()) return Finish(status);
    // Every process finds the same mistake, but a lack of memory is one process's own.
    ProcessRendezvous& rendezvous = site().process_group().rendezvous;
    status.code == Code::kInvalidArgument ? rendezvous.FailHere(&process_session(), status)
                                          : rendezvous.FailEverywhere(&process_session(), status);
  }
  LaunchSummary summary() const override {
    const int32_t* const table = *plan_ ? tables_.front().words : nullptr;
    return SummaryOfPlan(traffic_.data(), site().call_site().plan_row_bytes, table);
  }

  Status Plan() {
    const CallSite& call = site().call_site();
    if (Status status = ReadMetadata(site(), group(), process_session(), &args()); !status.ok()) return status;
    GatherCounts(args(), &scratch_);
    if (!*plan_) {
      if (launch()->recorded) SumAtHome(call, scratch_, &traffic_);
      return Status::Ok();
    }
    if (Status status = SumCounts(call, group(), args(), &traffic_, &scratch_); !status.ok()) return status;
    tables_.clear();
    for (const int32_t position : site().local(group())) {
      tables_.push_back({call.rank_of[position], args()[position].table_words});
    }
    Status planned = PlanRecorded([&](bool* made) { return (*plan_)(traffic_.data(), tables_, made); }, launch());
    return planned.ok() ? HandOverTables(args()) : planned;
  }

  const std::shared_ptr<const PlanFunction> plan_;
  std::vector<int64_t> traffic_;
  std::vector<int64_t> scratch_;
  std::vector<LocalTable> tables_;
};

}  // namespace

std::shared_ptr<Counts> OpenProcessCounts(std::shared_ptr<ProcessGroup> process_group,
                                          const std::shared_ptr<const CallSite>& site, PlanFunction plan) {
  const std::string what = plan ? "planning" : "gathering";
  auto recorder = std::make_shared<Recorder>(plan || site->experts > 0 ? site : nullptr, SiteKind{});
  return OpenRendezvous<ProcessOperation<CountsLaunch, std::shared_ptr<const PlanFunction>>>(
      std::move(process_group), site, what, std::move(recorder), std::make_shared<const PlanFunction>(std::move(plan)));
}

}  // namespace fastjax
