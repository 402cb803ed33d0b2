// Every scheduler on every kind of traffic: plans are replayed, devices' lists agree with the whole, and each scheduler
// keeps its own promises.
#include <algorithm>
#include <cstdint>
#include <iterator>
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

std::string Name(const Topology& topology, Scheduler scheduler, const std::string& traffic) {
  return std::string(planner::SchedulerNames()[static_cast<size_t>(scheduler)]) + ", " +
         std::to_string(topology.servers) + "x" + std::to_string(topology.devices_per_server) + ", " + traffic;
}

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

void CheckFast(const Topology& topology, int64_t row_bytes, const Matrix& traffic,
               const std::vector<Transfer>& transfers, int32_t stages) {
  const int32_t n = topology.servers;
  const int32_t m = topology.devices_per_server;
  const int64_t startup_rows =
      topology.scale_out_latency_ns * (topology.scale_out_bandwidth / 1'000'000'000) / row_bytes;
  const Matrix sums = ServerSums(topology, traffic);
  Matrix rails(sums.size() * m);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    CHECK_EQ(topology.local_of(transfer.src), topology.local_of(transfer.dst));
    CHECK_EQ(topology.server_of(transfer.src), topology.server_of(transfer.origin));
    CHECK_EQ(topology.server_of(transfer.dst), topology.server_of(transfer.target));
    const int32_t pair = topology.server_of(transfer.src) * n + topology.server_of(transfer.dst);
    rails[pair * m + topology.local_of(transfer.src)] += transfer.rows;
  }
  for (size_t pair = 0; pair < sums.size(); ++pair) {
    for (int32_t rail = 0; rail < m; ++rail) {
      CHECK_GE(rails[pair * m + rail], sums[pair] / m);
      CHECK_LE(rails[pair * m + rail], CeilDivide(sums[pair], m));
    }
  }
  CHECK_LE(stages, n == 1 ? 0 : planner::MaxStages(n));
  const int64_t length = SumOfStageLengths(topology, transfers, stages);
  const int64_t busiest = BusiestRail(topology, sums);
  CHECK_GE(length, busiest);
  // A cover without waste costs start-ups, and so may be worth less than one that takes fewer stages.
  if (n <= 16) CHECK_LE(length, (busiest + startup_rows * planner::MaxPeeled(n)) / 100 * 108 + 108);
  if (n <= 16 && startup_rows == 0) CHECK_LE(length, busiest + busiest / 100 + 1);
}

void CheckDeviceLists(Planner* plan, const std::vector<Transfer>& all) {
  // Backwards, so that the order in which devices are asked makes no difference.
  for (int32_t device = plan->topology().devices() - 1; device >= 0; --device) {
    std::vector<Transfer> mine;
    std::copy_if(all.begin(), all.end(), std::back_inserter(mine),
                 [&](const Transfer& transfer) { return transfer.src == device || transfer.dst == device; });
    CHECK(AllEqual(plan->DeviceTransfers(device), mine));
  }
}

// `plan` may have made other plans before.
void CheckPlan(const Topology& topology, Scheduler scheduler, int64_t row_bytes, const Case& test_case, Planner* plan) {
  const Context context(Name(topology, scheduler, test_case.name));
  plan->Plan(test_case.traffic.data());
  const std::vector<Transfer> all = AllTransfers(plan);
  const std::vector<int64_t> staging = StagingRows(*plan);
  CheckShape(topology, all, plan->num_stages());
  CheckReplay(topology, test_case.traffic, all, staging);
  CheckCoverage(topology, test_case.traffic, all, staging);
  CheckReplay(topology, Transposed(topology, test_case.traffic), Reversed(all), staging);
  const Scheduler chosen = plan->chosen();
  if (chosen == Scheduler::kFast || chosen == Scheduler::kSpreadout) CheckOneToOne(topology, all);
  if (scheduler == Scheduler::kFast) CheckFast(topology, row_bytes, test_case.traffic, all, plan->num_stages());
  CHECK_GE(plan->PredictedTime(), plan->LowerBound() * (1 - 1e-9));

  // A cold planner that is asked for devices first says the same.
  Planner cold(topology, scheduler, row_bytes);
  cold.Plan(test_case.traffic.data());
  CHECK_EQ(cold.hash(), plan->hash());
  CheckDeviceLists(&cold, all);
  CheckDeviceLists(plan, all);
  CHECK(AllEqual(AllTransfers(plan), all));
}

void TestAllSchedulers() {
  const int32_t shapes[][2] = {{1, 1}, {1, 8}, {2, 1}, {8, 1}, {2, 2},  {2, 4},  {4, 2},  {3, 3}, {5, 2},
                               {2, 8}, {4, 8}, {7, 3}, {9, 1}, {16, 1}, {12, 2}, {70, 1}, {2, 66}};
  for (const auto& shape : shapes) {
    const Topology topology = MakeTopology(shape[0], shape[1]);
    const std::vector<Case> cases = MakeCases(topology, 17 * shape[0] + shape[1]);
    for (const Scheduler scheduler : AllSchedulers()) {
      Planner plan(topology, scheduler, 64);
      for (const Case& test_case : cases) CheckPlan(topology, scheduler, 64, test_case, &plan);
    }
    Topology instant = topology;
    instant.scale_up_latency_ns = instant.scale_out_latency_ns = instant.transfer_overhead_ns = 0;
    Planner plan(instant, Scheduler::kFast, 64);
    for (const Case& test_case : cases) CheckPlan(instant, Scheduler::kFast, 64, test_case, &plan);
  }
}

// Rows so large that stages are cut, at a scale that can still be replayed.
void TestChunks() {
  const Topology topology = MakeTopology(2, 4);
  constexpr int64_t kRowBytes = int64_t{1} << 24;
  for (const Case& test_case : MakeCases(topology, 5)) {
    Planner plan(topology, Scheduler::kFast, kRowBytes);
    CheckPlan(topology, Scheduler::kFast, kRowBytes, test_case, &plan);
  }
  const Matrix traffic = Fill(topology, [](int32_t, int32_t) { return 1 << 20; });
  Planner plan(topology, Scheduler::kFast, 256);
  plan.Plan(traffic.data());
  CHECK_GE(plan.num_stages(), 2);
  CHECK_LE(plan.num_stages(), 16);
  const Matrix small = Fill(topology, [](int32_t, int32_t) { return 4; });
  plan.Plan(small.data());
  CHECK_EQ(plan.num_stages(), 1);
}

void TestHugeCounts() {
  for (const auto& shape : {std::pair(2, 4), std::pair(3, 3), std::pair(4, 1), std::pair(1, 4), std::pair(11, 2)}) {
    const Topology topology = MakeTopology(shape.first, shape.second);
    std::vector<Case> cases = MakeCases(topology, 3);
    for (Case& test_case : cases) {
      for (int64_t& rows : test_case.traffic) rows = rows * 1'234'567'891 + (rows > 0 ? rows % 7 : 0);
    }
    for (const Scheduler scheduler : AllSchedulers()) {
      Planner plan(topology, scheduler, 1);
      for (const Case& test_case : cases) {
        const Context context(Name(topology, scheduler, "huge " + test_case.name));
        plan.Plan(test_case.traffic.data());
        const std::vector<Transfer> all = AllTransfers(&plan);
        CheckShape(topology, all, plan.num_stages());
        CheckCoverage(topology, test_case.traffic, all, StagingRows(plan));
        if (scheduler == Scheduler::kFast) CheckFast(topology, 1, test_case.traffic, all, plan.num_stages());
      }
    }
  }
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
  fastjax::test::TestAllSchedulers();
  fastjax::test::TestChunks();
  fastjax::test::TestHugeCounts();
  fastjax::test::TestHash();
  fastjax::test::TestTimes();
  return fastjax::test::Finish("planner_test");
}
