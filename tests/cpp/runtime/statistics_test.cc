// Statistics: when call sites record their launches, and what is kept of them. The figures are checked in
// tests/host/test_stats.py.
#include "runtime/recorder.h"

#include <memory>
#include <vector>

#include "backends/memory/memory_backend.h"
#include "planner/table.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"

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

// What a launch in reverse leaves, and another that fails.
TEST(Notes) {
  const Collecting collecting;
  const std::vector<int64_t> sent = {1, 7, 2, 0};
  std::vector<int32_t> table(planner::kHeaderWords);
  table[planner::kStages] = 3;
  Recorder recorder(MakeSite(1, 2), SiteKind{PlanSource::kSelf, /*reverse=*/true, false});
  Launch launch = recorder.Begin();
  const auto plan = [](bool* planned) {
    *planned = true;
    return Status::Ok();
  };
  CHECK(PlanRecorded(plan, &launch).ok());
  recorder.End(launch, Status::Ok(), SummaryOfPlan(sent.data(), 16, table.data()));
  recorder.End(recorder.Begin(), Status::Internal("no"), {});
  const Statistics statistics = Records::Get().Report().front().statistics;
  CHECK_EQ(statistics.exchanges, 1);
  CHECK_EQ(statistics.failures, 1);
  CHECK_EQ(statistics.plans_made, 1);
  CHECK_EQ(statistics.total_bytes, 160);
  CHECK_EQ(statistics.skew, 1.6);
  CHECK_EQ(statistics.stages, 3);
  CHECK(statistics.traffic == (std::vector<int64_t>{1, 2, 7, 0}));
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
