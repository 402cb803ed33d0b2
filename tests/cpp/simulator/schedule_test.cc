// When messages begin and end on small fabrics, by times that can be found by hand.
#include "simulator/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/topology.h"
#include "planner/transfer.h"
#include "simulator/messages.h"
#include "simulator/simulator.h"
#include "support/check.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Topology;
using planner::Transfer;
using simulator::Fabric;
using simulator::Synchronization;

constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

// Two servers of two devices. Every link carries ten rows of a byte in a second, and nothing else takes time.
Topology PlainTopology() {
  Topology topology = MakeTopology(2, 2);
  topology.scale_up_bandwidth = 10;
  topology.scale_out_bandwidth = 10;
  topology.scale_up_latency_ns = 0;
  topology.scale_out_latency_ns = 0;
  topology.transfer_overhead_ns = 0;
  return topology;
}

// Straight from one server to the other.
Transfer Across(int32_t stage, int32_t src, int32_t dst, int64_t rows, int64_t first_row = 0) {
  return Rows(Phase::kScaleOut, stage, src, dst, {src, dst}, first_row, rows);
}

// Seconds, of messages: transfers in order, where none has company or pieces.
struct Times {
  std::vector<double> start, end;
  double last = 0;
};

Times Simulate(const std::vector<Transfer>& transfers, const Topology& topology, const Fabric& fabric,
               int32_t pieces = 1) {
  const simulator::Messages messages = simulator::GatherMessages(transfers, pieces);
  simulator::Simulator simulator(simulator::Schedule(messages, topology, 1, fabric), 0);
  CHECK(simulator.Advance(1'000'000));
  CHECK_EQ(simulator.done(), static_cast<int64_t>(simulator.end().size()));
  return {simulator.start(), simulator.end(), *std::max_element(simulator.end().begin(), simulator.end().end())};
}

bool Near(double seconds, double wanted) { return std::abs(seconds - wanted) < 1e-9; }

// The second message of a device waits for less or more of the first stage.
void TestSynchronizations() {
  const std::vector<Transfer> transfers = {Across(0, 0, 2, 10), Across(0, 1, 3, 20), Across(1, 0, 2, 10, 10)};
  const std::vector<Transfer> crossing = {Across(0, 0, 2, 10), Across(0, 1, 3, 20), Across(1, 0, 3, 10)};
  const auto starts_at = [](const std::vector<Transfer>& all, Synchronization synchronization) {
    Fabric fabric;
    fabric.synchronization = synchronization;
    return Simulate(all, PlainTopology(), fabric).start[2];
  };
  CHECK(Near(starts_at(transfers, Synchronization::kCredit), 1));
  CHECK(Near(starts_at(transfers, Synchronization::kFree), 1));
  CHECK(Near(starts_at(transfers, Synchronization::kBarrier), 2));
  CHECK(Near(starts_at(transfers, Synchronization::kWindow), 1));
  // Its receiver still receives for the first stage.
  CHECK(Near(starts_at(crossing, Synchronization::kCredit), 2));
  CHECK(Near(starts_at(crossing, Synchronization::kFree), 1));
  CHECK(Near(starts_at(crossing, Synchronization::kBarrier), 2));
  CHECK(Near(starts_at(crossing, Synchronization::kWindow), 0));
}

// Six stages of a start-up of a second and rows of another: start-ups of four at a time overlap with rows.
void TestWindowHidesStartUps() {
  Topology topology = PlainTopology();
  topology.scale_out_latency_ns = kSecond;
  std::vector<Transfer> transfers;
  for (int32_t stage = 0; stage < 6; ++stage) transfers.push_back(Across(stage, 0, 2, 10, 10 * stage));
  Fabric fabric;
  CHECK(Near(Simulate(transfers, topology, fabric).last, 12));
  fabric.synchronization = Synchronization::kWindow;
  const Times times = Simulate(transfers, topology, fabric);
  for (size_t stage = 0; stage < 6; ++stage) CHECK(Near(times.end[stage], 2.0 + static_cast<double>(stage)));
}

// What crosses without having been balanced need not wait for what is, unless the fabric says so.
void TestBalanceFirst() {
  const std::vector<Transfer> transfers = {Rows(Phase::kBalance, 0, 0, 1, {0, 3}, 0, 10), Across(0, 0, 2, 10),
                                           Rows(Phase::kScaleOut, 0, 1, 3, {0, 3}, 0, 10)};
  Fabric fabric;
  CHECK(Near(Simulate(transfers, PlainTopology(), fabric).start[1], 0));
  fabric.balance_first = true;
  const Times times = Simulate(transfers, PlainTopology(), fabric);
  CHECK(Near(times.start[1], 1));
  CHECK(Near(times.start[2], 1));
  CHECK(Near(times.last, 2));
}

// Rows are sent on once a piece of them has come; only the first piece takes a start-up.
void TestPieces() {
  Topology topology = PlainTopology();
  topology.scale_up_latency_ns = kSecond;
  topology.scale_out_latency_ns = kSecond;
  const std::vector<Transfer> transfers = {Rows(Phase::kBalance, 0, 0, 1, {0, 3}, 0, 10),
                                           Rows(Phase::kScaleOut, 0, 1, 3, {0, 3}, 0, 10)};
  CHECK(Near(Simulate(transfers, topology, {}, 1).last, 4));
  const Times times = Simulate(transfers, topology, {}, 2);
  CHECK_EQ(times.end.size(), size_t{4});
  CHECK(Near(times.end[0], 1.5));
  CHECK(Near(times.end[1], 2));
  CHECK(Near(times.end[2], 3));
  CHECK(Near(times.last, 3.5));
}

void TestOversubscription() {
  const std::vector<Transfer> transfers = {Across(0, 0, 2, 10), Across(0, 1, 3, 10), Across(0, 2, 0, 10),
                                           Across(0, 3, 1, 10)};
  Fabric fabric;
  CHECK(Near(Simulate(transfers, PlainTopology(), fabric).last, 1));
  fabric.oversubscription = 2;
  CHECK(Near(Simulate(transfers, PlainTopology(), fabric).last, 2));
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestSynchronizations();
  fastjax::test::TestWindowHidesStartUps();
  fastjax::test::TestBalanceFirst();
  fastjax::test::TestPieces();
  fastjax::test::TestOversubscription();
  return fastjax::test::Finish("schedule_test");
}
