// Statistics: what call sites record of their launches, and what is kept of it.
#include "runtime/recorder.h"

#include <memory>
#include <random>
#include <vector>

#include "backends/memory/memory_backend.h"
#include "planner/table.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/job_rig.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using memory::MemoryBackend;

// Collects statistics, of nothing that was before.
struct Collecting {
  Collecting() {
    Records::Get().Reset();
    Records::Collect(true);
  }
  ~Collecting() { Records::Collect(false); }
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;
};

TEST(Skew) {
  std::vector<int64_t> scratch;
  const auto skew = [&](const std::vector<int64_t>& traffic, int32_t ranks) {
    return SkewOf(traffic, ranks, &scratch);
  };
  CHECK_EQ(skew({0, 0, 0, 0}, 2), 1.0);
  CHECK_EQ(skew({1, 1, 1, 1}, 2), 1.0);
  CHECK_EQ(skew({0, 6, 0, 0}, 2), 2.0);
  CHECK_EQ(skew({5}, 1), 1.0);
  // Rank 0 sends 4 rows, and receives 6 of 12 rows, where 4 is the mean.
  CHECK_EQ(skew({0, 3, 1, 4, 0, 0, 2, 0, 2}, 3), 1.5);
  // Rank 2 sends 9.
  CHECK_EQ(skew({1, 0, 0, 0, 1, 1, 3, 3, 3}, 3), 2.25);
}

// By hand: what one launch leaves, the way there and back.
TEST(Notes) {
  const Collecting collecting;
  const std::vector<int64_t> sent = {1, 7, 2, 0};
  std::vector<int32_t> table(planner::kHeaderWords);
  table[planner::kStages] = 3;
  table[planner::kSchedulerUsed] = static_cast<int32_t>(planner::Scheduler::kRails);
  for (const bool reverse : {false, true}) {
    Records::Get().Reset();
    Recorder recorder(MakeSite(1, 2), SiteKind{PlanSource::kSelf, reverse, false});
    for (const bool made : {true, false, false}) {
      Launch launch = recorder.Begin();
      CHECK(launch.recorded);
      const auto plan = [made](bool* planned) {
        *planned = made;
        return Status::Ok();
      };
      CHECK(PlanRecorded(plan, &launch).ok());
      recorder.End(launch, Status::Ok(), SummaryOfPlan(sent.data(), 16, table.data()));
    }
    recorder.End(recorder.Begin(), Status::Internal("no"), {});
    recorder.Fail();
    const std::vector<SiteReport> reports = Records::Get().Report();
    CHECK_EQ(reports.size(), 1U);
    const Statistics& statistics = reports.front().statistics;
    CHECK(reports.front().active);
    CHECK_EQ(statistics.exchanges, 3);
    CHECK_EQ(statistics.failures, 2);
    CHECK_EQ(statistics.plans_made, 1);
    CHECK_EQ(statistics.plans_reused, 2);
    CHECK_EQ(statistics.rows, 10);
    CHECK_EQ(statistics.total_rows, 30);
    CHECK_EQ(statistics.row_bytes, 16);
    CHECK_EQ(statistics.total_bytes, 480);
    CHECK_EQ(statistics.skew, 1.6);
    CHECK_EQ(statistics.stages, 3);
    CHECK_EQ(statistics.scheduler, static_cast<int32_t>(planner::Scheduler::kRails));
    CHECK_EQ(statistics.planning.count, 3);
    CHECK_EQ(statistics.exchange.count, 3);
    CHECK(statistics.traffic == (reverse ? std::vector<int64_t>{1, 2, 7, 0} : sent));
  }
}

// Launches that began while nothing was collected leave nothing, whenever they end; and the other way round.
TEST(Switch) {
  Records::Get().Reset();
  Recorder recorder(MakeSite(1, 1), SiteKind{});
  const int64_t sent = 4;
  const LaunchSummary seen{&sent, 1};
  const Launch before = recorder.Begin();
  CHECK(!before.recorded);
  Records::Collect(true);
  const Launch during = recorder.Begin();
  recorder.End(before, Status::Ok(), seen);
  CHECK(Records::Get().Report().empty());
  Records::Collect(false);
  recorder.Fail();
  CHECK(Records::Get().Report().empty());
  recorder.End(during, Status::Ok(), seen);
  const std::vector<SiteReport> reports = Records::Get().Report();
  CHECK_EQ(reports.size(), 1U);
  CHECK_EQ(reports.front().statistics.exchanges, 1);
  CHECK_EQ(reports.front().statistics.failures, 0);
  CHECK_EQ(reports.front().statistics.exchange.count, 0);  // it only plans
}

// Of call sites that are gone the newest are kept, those that are there whatever their number; order is that of
// creation.
TEST(Ended) {
  const Collecting collecting;
  constexpr size_t kMore = 5;
  Recorder first(MakeSite(1, 1), SiteKind{});
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (size_t i = 0; i < Records::kMaxEnded + kMore; ++i) {
    recorders.push_back(std::make_unique<Recorder>(MakeSite(1, 1), SiteKind{}));
  }
  for (size_t i = recorders.size(); i-- > 0;) recorders[i]->Fail();
  first.Fail();
  std::vector<SiteReport> before = Records::Get().Report();
  CHECK_EQ(before.size(), recorders.size() + 1);
  for (size_t i = 1; i < before.size(); ++i) CHECK(before[i - 1].number < before[i].number);
  recorders.clear();
  std::vector<SiteReport> after = Records::Get().Report();
  CHECK_EQ(after.size(), Records::kMaxEnded + 1);
  CHECK_EQ(after.front().number, before.front().number);
  CHECK(after.front().active);
  CHECK(!after[1].active);
  CHECK_EQ(after[1].number, before[1 + kMore].number);
  CHECK_EQ(after.back().number, before.back().number);
  Records::Get().Reset();
  CHECK(Records::Get().Report().empty());
  first.Fail();
  after = Records::Get().Report();
  CHECK_EQ(after.size(), 1U);
  CHECK_EQ(after.front().statistics.failures, 1);
}

TEST(TimeoutIsAFailure) {
  const Collecting collecting;
  const auto site = MakeSite(1, 2, 50);
  const auto exchange = MemoryBackend().OpenExchange(site, {});
  const auto counts = MemoryBackend().OpenCounts(
      site, [](const int64_t*, const std::vector<LocalTable>&, bool*) { return Status::Ok(); });
  const Outcomes outcomes(2);
  exchange->Start(1, 0, {}, outcomes.For(0));
  counts->Start(1, 0, {}, outcomes.For(1));
  outcomes.WaitAll();
  const std::vector<SiteReport> reports = Records::Get().Report();
  CHECK_EQ(reports.size(), 2U);
  for (const SiteReport& report : reports) {
    CHECK_EQ(report.statistics.failures, 1);
    CHECK_EQ(report.statistics.exchanges, 0);
  }
}

}  // namespace
}  // namespace fastjax::test
