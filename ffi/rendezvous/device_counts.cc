#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exchange/counts.h"
#include "rendezvous/counts.h"
#include "rendezvous/rendezvous.h"
#include "runtime/recorder.h"

namespace fastjax {
namespace {

// When the last device arrives, its thread has the counts of all: it plans once and writes every device's table.
class DeviceCounts final : public Rendezvous<CountsArgs> {
 public:
  DeviceCounts(const std::shared_ptr<const CallSite>& call_site, PlanFunction plan)
      : Rendezvous(call_site),
        plan_(std::move(plan)),
        recorder_(plan_ || call_site->experts > 0 ? call_site : nullptr, SiteKind{}) {}

 private:
  void Execute(Session* session, int32_t last) override { session->Finish(Plan(*session), last); }
  void OnFailed(const Session& /*session*/, const Status& /*why*/) override { recorder_.Fail(); }

  Status Plan(const Session& session) {
    // A call site plans for one launch at a time: its groups and launches share scratch memory.
    const std::lock_guard<std::mutex> lock(mutex_);
    Launch launch = recorder_.Begin();
    Status status = Guarded([&] { return Plan(session, &launch); });
    const int32_t* const table = plan_ ? session.args().front().table_words : nullptr;
    recorder_.End(launch, status,
                  status.ok() && launch.recorded ? SummaryOfPlan(traffic_.data(), site().plan_row_bytes, table)
                                                 : LaunchSummary{});
    return status;
  }

  Status Plan(const Session& session, Launch* launch) {
    GatherCounts(session.args(), &sizes_);
    if (!plan_) {
      if (launch->recorded) SumAtHome(site(), sizes_, &traffic_);
      return Status::Ok();
    }
    Status summed = SumCounts(site(), session.group(), session.args(), &traffic_, &sizes_);
    if (!summed.ok()) return summed;
    tables_.clear();
    for (int32_t p = 0; p < site().group_size; ++p) {
      tables_.push_back({site().rank_of[p], session.args()[p].table_words});
    }
    Status planned = PlanRecorded([&](bool* made) { return plan_(traffic_.data(), tables_, made); }, launch);
    return planned.ok() ? HandOverTables(session.args()) : planned;
  }

  const PlanFunction plan_;
  Recorder recorder_;
  std::mutex mutex_;
  std::vector<int64_t> traffic_;
  std::vector<int64_t> sizes_;
  std::vector<LocalTable> tables_;
};

}  // namespace

std::shared_ptr<Counts> OpenDeviceCounts(const std::shared_ptr<const CallSite>& site, PlanFunction plan) {
  return OpenRendezvous<DeviceCounts>(site, std::move(plan));
}

}  // namespace fastjax
