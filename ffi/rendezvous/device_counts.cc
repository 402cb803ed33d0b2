#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exchange/counts.h"
#include "rendezvous/counts.h"
#include "rendezvous/device_operation.h"
#include "rendezvous/rendezvous.h"
#include "runtime/meter.h"

namespace fastjax {
namespace {

// When the last device arrives, its thread has the counts of all: it plans once and writes every device's table.
struct CountsState {
  using Session = Rendezvous<CountsArgs>::Session;

  CountsState(std::shared_ptr<const CallSite> s, PlanFunction p)
      : site(std::move(s)), plan(std::move(p)), meter(plan ? site : nullptr, SiteKind{}) {}

  void Execute(const std::shared_ptr<CountsState>& /*self*/, Session* session, int32_t last) {
    session->Finish(Plan(*session), last);
  }

  Status Plan(const Session& session) {
    // A call site plans for one launch at a time: its groups and launches share scratch memory.
    const std::lock_guard<std::mutex> lock(mutex);
    Launch launch = meter.Begin();
    Status status = Guarded([&] { return Plan(session, &launch); });
    const int32_t* const table = session.args().front().table_words;
    meter.End(launch, status,
              status.ok() && launch.metered ? SeenOf(traffic.data(), site->plan_row_bytes, table) : Seen{});
    return status;
  }

  Status Plan(const Session& session, Launch* launch) {
    GatherCounts(session.args(), &sizes);
    if (!plan) return Status::Ok();
    Status summed = SumCounts(*site, session.group(), session.args(), &traffic, &sizes);
    if (!summed.ok()) return summed;
    tables.clear();
    for (int32_t p = 0; p < site->group_size; ++p) {
      tables.push_back({site->rank_of[p], session.args()[p].table_words});
    }
    Status planned = PlanMetered([&](bool* anew) { return plan(traffic.data(), tables, anew); }, launch);
    return planned.ok() ? HandOverTables(session.args()) : planned;
  }

  const std::shared_ptr<const CallSite> site;
  const PlanFunction plan;
  Meter meter;
  std::mutex mutex;
  std::vector<int64_t> traffic;
  std::vector<int64_t> sizes;
  std::vector<LocalTable> tables;
};

}  // namespace

std::unique_ptr<Counts> OpenDeviceCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return std::make_unique<DeviceOperation<Counts, CountsArgs, CountsState>>(
      std::make_shared<CountsState>(std::move(site), std::move(plan)));
}

}  // namespace fastjax
