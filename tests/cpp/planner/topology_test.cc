// Topologies from words, prices, and a slow NIC. Plans for NICs that differ or have failed are random_plans'.
#include "planner/topology.h"

#include <cstdint>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "planner/rate.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;

using Words = std::vector<int64_t>;

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

// What is refused, tests/test_handlers.py has.
TEST(Words) {
  const Words good = {2, 3, 400, 50, 1, 2, 3, 4};
  Topology topology;
  CHECK_EQ(std::string(planner::ReadTopology(good.data(), 8, &topology)), "");
  CHECK_EQ(topology.servers, 2);
  CHECK_EQ(topology.devices_per_server, 3);
  CHECK_EQ(topology.scale_up_bandwidth, 400);
  CHECK_EQ(topology.scale_out_bandwidth, 50);
  CHECK_EQ(topology.scale_up_latency_ns, 1);
  CHECK_EQ(topology.scale_out_latency_ns, 2);
  CHECK_EQ(topology.transfer_overhead_ns, 3);
  CHECK_EQ(topology.incast_loss_ppm, 4);
  CHECK(topology.equal_nics());
  CHECK_EQ(topology.fastest_nic(), 50);

  Words nics = good;
  nics.insert(nics.end(), {9, 0, 7, 0, 0, 30});
  CHECK_EQ(std::string(planner::ReadTopology(nics.data(), 14, &topology)), "");
  CHECK_EQ(topology.nic_bandwidth(2), 7);
  CHECK_EQ(topology.fastest_nic(), 30);
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
