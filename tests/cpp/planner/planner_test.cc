// Plans for more rails and servers than random_plans draws, and prices. What plans promise is checked there; how near
// to the bounds they are, and that hashes tell them apart, in Python (tests/host/test_bound.py, test_stage_tables.py).
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/pricing.h"
#include "planner/table.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

// All schedulers, where there are more rails or servers than random_plans draws.
TEST(ManyRails) {
  for (const auto& [servers, local] : {std::pair(70, 1), std::pair(2, 66)}) {
    const Topology topology = MakeTopology(servers, local);
    for (const Scheduler scheduler : AllSchedulers()) {
      Planner plan(topology, scheduler, 64);
      for (const Case& test_case : SomeCases(topology, 3)) {
        const Context context(std::to_string(static_cast<int>(scheduler)) + ", " + test_case.name);
        plan.Plan(test_case.traffic.data());
        const std::vector<Transfer> all = AllTransfers(&plan);
        CheckShape(topology, all, plan.num_stages());
        CheckReplay(topology, test_case.traffic, all, StagingRows(plan));
      }
    }
  }
}

// A planner that has seen its traffic once plans without allocating.
void CheckWarm(Scheduler scheduler) {
  const Topology topology = MakeTopology(4, 4);
  Planner plan(topology, scheduler, 1 << 20);
  std::vector<int32_t> words(planner::TableWords(topology, scheduler));
  const std::vector<Case> cases = MakeCases(topology, 1);
  for (const bool warm : {false, true}) {
    const long before = Allocations();
    bool written = true;
    for (const Case& test_case : cases) {
      plan.Plan(test_case.traffic.data());
      for (int32_t device = 0; device < topology.devices(); ++device) {
        written = WriteTable(&plan, device, words.data()) && written;
      }
    }
    const long allocations = Allocations() - before;
    CHECK(written);
    CHECK_EQ(allocations == 0, warm);
  }
}

TEST(Warm) {
  for (const Scheduler scheduler : AllSchedulers()) CheckWarm(scheduler);
}

// Where memory runs out half-way, nothing has been planned, and the same traffic is planned anew.
TEST(NoMemoryForTransfers) {
  const Topology topology = MakeTopology(2, 4);
  const Case test_case = MakeCases(topology, 1).back();
  for (const Scheduler scheduler : AllSchedulers()) {
    Planner plan(topology, scheduler, 64);
    plan.Plan(test_case.traffic.data());
    bool thrown = false;
    NoMemory() = true;
    try {
      plan.DeviceTransfers(planner::kEveryDevice);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    NoMemory() = false;
    CHECK(thrown && plan.traffic() == nullptr);
    plan.Plan(test_case.traffic.data());
    CheckReplay(topology, test_case.traffic, AllTransfers(&plan), StagingRows(plan));
  }
}

// Prices are right to a millionth, whether a row takes hours or a small part of a picosecond.
TEST(Rates) {
  using planner::Rate;
  for (const int64_t row_bytes : {int64_t{1}, int64_t{7}, int64_t{4096}, (int64_t{1} << 40) - 1}) {
    for (const int64_t bandwidth : {int64_t{1}, int64_t{1000}, int64_t{50'000'000'000}, int64_t{1} << 61}) {
      const Rate rate(row_bytes, bandwidth);
      const long double row = 1e12L * static_cast<long double>(row_bytes) / static_cast<long double>(bandwidth);
      if (row > 5e17L) continue;  // six days: such rows are only compared
      const int64_t rows = int64_t{1} << 50;
      const auto time = static_cast<long double>(rate.Time(rows));
      CHECK(time <= row * rows * (1 + 1e-9L) && time >= row * rows * (1 - 1e-6L));
      // What fits into a time takes no longer, and one row more hardly less.
      const int64_t fit = rate.Rows(rate.Time(1'000'000));
      CHECK(rate.Time(fit) <= rate.Time(1'000'000) &&
            static_cast<long double>(fit + 2) * row * (1 + 1e-6L) >= static_cast<long double>(rate.Time(1'000'000)));
    }
  }
  CHECK_EQ(Rate(1, int64_t{1} << 61).Rows(planner::Picoseconds{1} << 120), int64_t{1} << 62);
}

// The slowest of a server's NICs does not hold up the others.
TEST(SlowNic) {
  Topology topology = MakeTopology(2, 4);
  topology.scale_out_latency_ns = topology.scale_up_latency_ns = 0;
  topology.nic_bandwidths = {50, 50, 50, 10, 50, 50, 50, 50};
  for (int64_t& rate : topology.nic_bandwidths) rate *= 1'000'000'000;
  const Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return i < 4 && j >= 4 ? 100'000 : 0; });
  Planner plan(topology, Scheduler::kFast, 4096);
  plan.Plan(traffic.data());
  CHECK_LT(plan.PredictedTime(), 1.1 * plan.LowerBound());
}

}  // namespace
}  // namespace fastjax::test
