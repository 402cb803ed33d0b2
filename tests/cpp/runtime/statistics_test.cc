// Statistics: when call sites record their launches, and what is kept of them. The figures are checked in
// tests/host/test_stats.py.
#include "runtime/recorder.h"

#include <memory>
#include <vector>

#include "backends/memory/memory_backend.h"
#include "rendezvous/counts.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"

namespace fastjax::test {
namespace {

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

// Of call sites that are gone the newest are kept, those that are there whatever their number.
TEST(Ended) {
  const Collecting collecting;
  constexpr size_t kMore = 5;
  Recorder first(MakeSite(1, 1), SiteKind{});
  first.Fail();
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (size_t i = 0; i < Records::kMaxEnded + kMore; ++i) {
    recorders.push_back(std::make_unique<Recorder>(MakeSite(1, 1), SiteKind{}));
    recorders.back()->Fail();
    const Recorder idle(MakeSite(1, 1), SiteKind{});  // takes nobody's place
  }
  const std::vector<SiteReport> before = Records::Get().Report();
  CHECK_EQ(before.size(), recorders.size() + 1);
  recorders.clear();
  const std::vector<SiteReport> after = Records::Get().Report();
  CHECK_EQ(after.size(), Records::kMaxEnded + 1);
  CHECK(after.front().site == before.front().site);
  CHECK(after[1].site == before[1 + kMore].site);
  CHECK(after.back().site == before.back().site);
}

TEST(TimeoutIsAFailure) {
  const Collecting collecting;
  const auto site = MakeSite(1, 2, 50);
  const auto exchange = memory::OpenExchange(site, {});
  const auto counts = OpenCounts(nullptr, site, [](const int64_t*, const TakePlan&, bool*) { return Status::Ok(); });
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
