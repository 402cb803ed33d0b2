// How long plans of "fast" take, their hashes and predicted times. That plans of all schedulers are right is checked by
// random_plans.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "planner/matchings.h"
#include "planner/planner.h"
#include "planner/stages.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

// Rows from server to server, row-major.
Matrix ServerSums(const Topology& topology, const Matrix& traffic) {
  const int32_t devices = topology.devices();
  Matrix sums(static_cast<size_t>(topology.servers) * topology.servers);
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      const int32_t s = topology.server_of(i);
      const int32_t d = topology.server_of(j);
      if (s != d) sums[s * topology.servers + d] += traffic[static_cast<size_t>(i) * devices + j];
    }
  }
  return sums;
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The busiest server's rows on each of its rails, sent or received.
int64_t BusiestRail(const Topology& topology, const Matrix& sums) {
  const int32_t n = topology.servers;
  int64_t busiest = 0;
  for (int32_t a = 0; a < n; ++a) {
    int64_t leaving = 0;
    int64_t entering = 0;
    for (int32_t b = 0; b < n; ++b) {
      leaving += CeilDivide(sums[a * n + b], topology.devices_per_server);
      entering += CeilDivide(sums[b * n + a], topology.devices_per_server);
    }
    busiest = std::max({busiest, leaving, entering});
  }
  return busiest;
}

int64_t SumOfStageLengths(const Topology& topology, const std::vector<Transfer>& transfers, int32_t stages) {
  const int32_t devices = topology.devices();
  Matrix sent(static_cast<size_t>(stages) * devices);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase == Phase::kScaleOut) sent[transfer.stage * devices + transfer.src] += transfer.rows;
  }
  int64_t total = 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    total += *std::max_element(sent.begin() + stage * devices, sent.begin() + (stage + 1) * devices);
  }
  return total;
}

void CheckFast(const Topology& topology, int64_t row_bytes, const Case& test_case) {
  const Context context(std::to_string(topology.servers) + "x" + std::to_string(topology.devices_per_server) + ", " +
                        test_case.name);
  Planner plan(topology, Scheduler::kFast, row_bytes);
  plan.Plan(test_case.traffic.data());
  const int32_t stages = plan.num_stages();
  const int32_t n = topology.servers;
  const int64_t startup_rows =
      topology.scale_out_latency_ns * (topology.scale_out_bandwidth / 1'000'000'000) / row_bytes;
  const Matrix sums = ServerSums(topology, test_case.traffic);
  CHECK_LE(stages, n == 1 ? 0 : planner::MaxStages(n));
  const int64_t length = SumOfStageLengths(topology, AllTransfers(&plan), stages);
  const int64_t busiest = BusiestRail(topology, sums);
  CHECK_GE(length, busiest);
  // A cover without waste costs start-ups, and so may be worth less than one that takes fewer stages.
  if (n <= 16) CHECK_LE(length, (busiest + startup_rows * planner::MaxPeeled(n)) / 100 * 108 + 108);
  if (n <= 16 && startup_rows == 0) CHECK_LE(length, busiest + busiest / 100 + 1);
}

// In how few stages, and how near to the busiest server's rows; also where there are more rails or servers than bits in
// a word, where start-ups take no time, and where rows are so large that stages are cut, or so many that they are.
void TestFast() {
  const int32_t shapes[][2] = {{1, 1}, {1, 8}, {2, 1}, {8, 1}, {2, 2},  {2, 4},  {4, 2},  {3, 3}, {5, 2},
                               {2, 8}, {4, 8}, {7, 3}, {9, 1}, {16, 1}, {12, 2}, {70, 1}, {2, 66}};
  for (const auto& shape : shapes) {
    Topology topology = MakeTopology(shape[0], shape[1]);
    std::vector<Case> cases = MakeCases(topology, 17 * shape[0] + shape[1]);
    Topology instant = topology;
    instant.scale_up_latency_ns = instant.scale_out_latency_ns = instant.transfer_overhead_ns = 0;
    for (Case& test_case : cases) {
      CheckFast(topology, 64, test_case);
      CheckFast(instant, 64, test_case);
      CheckFast(topology, int64_t{1} << 24, test_case);
      for (int64_t& rows : test_case.traffic) rows = rows * 1'234'567'891 + (rows > 0 ? rows % 7 : 0);
      CheckFast(topology, 1, test_case);
    }
  }
}

// All schedulers, where there are more rails or servers than random_plans draws.
void TestManyRails() {
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

void TestChunks() {
  const Topology topology = MakeTopology(2, 4);
  Planner plan(topology, Scheduler::kFast, 256);
  const Matrix traffic = Fill(topology, [](int32_t, int32_t) { return 1 << 20; });
  plan.Plan(traffic.data());
  CHECK_GE(plan.num_stages(), 2);
  CHECK_LE(plan.num_stages(), 16);
  const Matrix small = Fill(topology, [](int32_t, int32_t) { return 4; });
  plan.Plan(small.data());
  CHECK_EQ(plan.num_stages(), 1);
}

void TestHash() {
  const Topology topology = MakeTopology(2, 4);
  const Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return i * 3 + j; });
  Planner plan(topology, Scheduler::kFast, 64);
  plan.Plan(traffic.data());
  const uint64_t hash = plan.hash();
  for (size_t entry = 0; entry < traffic.size(); ++entry) {
    Matrix other = traffic;
    ++other[entry];
    plan.Plan(other.data());
    CHECK_NE(plan.hash(), hash);
  }
  plan.Plan(traffic.data());
  CHECK_EQ(plan.hash(), hash);
  const auto hash_of = [&](const Topology& t, Scheduler scheduler, int64_t row_bytes) {
    Planner other(t, scheduler, row_bytes);
    other.Plan(traffic.data());
    return other.hash();
  };
  CHECK_NE(hash_of(topology, Scheduler::kDirect, 64), hash);
  CHECK_NE(hash_of(topology, Scheduler::kFast, 65), hash);
  CHECK_NE(hash_of(MakeTopology(4, 2), Scheduler::kFast, 64), hash);
  Topology slower = topology;
  slower.scale_out_bandwidth /= 2;
  CHECK_NE(hash_of(slower, Scheduler::kFast, 64), hash);
}

void TestTimes() {
  Topology topology = MakeTopology(2, 2);
  topology.scale_up_bandwidth = 1000;
  topology.scale_out_bandwidth = 100;
  topology.scale_up_latency_ns = 0;
  topology.scale_out_latency_ns = 0;
  topology.transfer_overhead_ns = 0;
  // Device 0 sends 200 rows of 1 byte to device 2: both rails of the pair could take 100 of them, 1 s each.
  const Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return i == 0 && j == 2 ? 200 : 0; });
  const auto close = [](double a, double b) { return a > b * 0.999999 && a < b * 1.000001; };
  Planner direct(topology, Scheduler::kDirect, 1);
  direct.Plan(traffic.data());
  CHECK(close(direct.LowerBound(), 1.0));
  CHECK(close(direct.PredictedTime(), 2.0));
  Planner fast(topology, Scheduler::kFast, 1);
  fast.Plan(traffic.data());
  CHECK_LE(fast.PredictedTime(), 1.2);
  // A start-up for the exchange, or for each stage.
  topology.scale_out_latency_ns = 1'000'000'000;
  const Matrix fan_out = Fill(topology, [](int32_t i, int32_t j) { return i == 0 && j >= 2 ? 100 : 0; });
  Planner slow(topology, Scheduler::kDirect, 1);
  slow.Plan(fan_out.data());
  CHECK(close(slow.PredictedTime(), 3.0));
  Planner staged(topology, Scheduler::kSpreadout, 1);
  staged.Plan(fan_out.data());
  CHECK(close(staged.PredictedTime(), 4.0));
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestFast();
  fastjax::test::TestManyRails();
  fastjax::test::TestChunks();
  fastjax::test::TestHash();
  fastjax::test::TestTimes();
  return fastjax::test::Finish("planner_test");
}
