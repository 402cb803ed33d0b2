// Exchanges between processes, without the protocol by which they meet: large rows, sums
// and windows. Exchanges of every kind are in network_exchange_test.
#include "backends/network/runner.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "simulator/schedule.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/loopback_transport.h"
#include "support/network_rig.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

// What the pool copies, and what is written past the caches. Several processes have both ends of some transfers.
TEST(Large) {
  std::mt19937_64 random(3);
  int64_t sums = 0;
  for (const int64_t row_bytes : {2'000, 28'000}) {
    for (const Owners owners : {Owners::kServers, Owners::kPairs, Owners::kAny}) {
      for (const auto& exchange_options : {Way(false, false), Way(true, false), Way(true, true)}) {
        RigOptions options;
        options.topology = MakeTopology(4, 2);
        options.row_bytes = row_bytes;
        options.exchange = exchange_options;
        options.overlap = exchange_options.transposed_table;
        const Context context(Name(options));
        const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
        LoopbackOptions loopback;
        loopback.processes = Deal(owners, 2, &random, site.get());
        LoopbackNetwork network(loopback);
        NetworkExchange exchange(&network, site, exchange_options);
        Rig rig(site, options, Fill(options.topology, [&](int32_t, int32_t) { return random() % 16; }), &random);
        sums += rig.sums() ? 1 : 0;
        for (int64_t run_id = 0; run_id < 2; ++run_id) {
          rig.Reset();
          rig.CheckRun(&exchange, run_id, false);
        }
      }
    }
  }
  CHECK_GT(sums, 3);
}

// Rows that indices name, with factors, whose messages come in any order.
TEST(IndexedSums) {
  std::mt19937_64 random(6);
  for (const RigOptions& options : IndexedSums()) {
    if (!options.factors) continue;
    const Context context(Name(options));
    const auto site = MakeSite(2, options.topology.devices(), kNoTimeoutMs, &random);
    LoopbackOptions loopback;
    loopback.processes = Deal(Owners::kAny, options.topology.devices_per_server, &random, site.get());
    loopback.reorder = true;
    LoopbackNetwork network(loopback);
    NetworkExchange exchange(&network, site, options.exchange);
    Rig rig(site, options, Fill(options.topology, [&](int32_t, int32_t) { return random() % 16; }), &random);
    rig.CheckRun(&exchange, 1, false);
  }
}

TEST(BytesAhead) {
  CallSite site;
  CHECK_EQ(network::WindowOf(site), std::numeric_limits<int64_t>::max());
  site.nic_bandwidth = 1'000'000;
  CHECK_EQ(network::WindowOf(site), 32768 + 5'000);
  site.scale_out_latency_ns = 1'000'000;
  CHECK_EQ(network::WindowOf(site), 32768 + 7'000);
  site.nic_bandwidth = std::numeric_limits<int64_t>::max();
  CHECK_GT(network::WindowOf(site), int64_t{1} << 40);
}

// Any windows do, also different ones at the two ends; and nobody has more begun than its own.
TEST(Windows) {
  std::mt19937_64 random(5);
  using network::Limits;
  // What is simulated is what there is.
  CHECK_EQ(Limits().send_stages, simulator::kStagesInFlight);
  CHECK_EQ(Limits().receive_stages, simulator::kStagesInFlight);
  const Limits kWindows[][2] = {
      {{1, 1}, {1, 1}}, {{1, 3}, {3, 1}}, {{5, 1}, {1, 1}}, {{1, 1}, {4, 4}}, {{9, 9}, {9, 9}}};
  for (const auto& windows : kWindows) {
    for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kSpreadout}) {
      RigOptions options;
      options.topology = MakeTopology(4, 2);
      options.scheduler = scheduler;
      const Context context(Name(options));
      const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
      LoopbackOptions loopback;
      loopback.processes = Deal(Owners::kServers, 2, &random, site.get());
      loopback.eager_bytes = 0;
      LoopbackNetwork network(loopback);
      NetworkExchange exchange(&network, site, options.exchange, windows[0], windows[1]);
      for (int64_t run_id = 0; run_id < 5; ++run_id) {
        Rig rig(site, options, Fill(options.topology, [&](int32_t, int32_t) { return random() % 90; }), &random);
        rig.CheckRun(&exchange, run_id, false);
      }
      CHECK_GT(network.most_receives(), 0);
      // Of staged plans between servers: a message a stage, and no others.
      CHECK_LE(network.most_receives(), std::max(windows[0].receive_stages, windows[1].receive_stages));
      CHECK_LE(network.most_sends(), std::max(windows[0].send_stages, windows[1].send_stages));
    }
  }
}

}  // namespace
}  // namespace fastjax::test
