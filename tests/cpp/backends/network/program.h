// A job and a program of exchanges in it, whose rows can be held, and whose clock is the test's.
#ifndef FASTJAX_TESTS_CPP_BACKENDS_NETWORK_PROGRAM_H_
#define FASTJAX_TESTS_CPP_BACKENDS_NETWORK_PROGRAM_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/job_rig.h"
#include "support/loopback_transport.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {

// One call site of the program. Its channel is its number, from 1.
struct Call {
  std::unique_ptr<Rig> MakeRig() const {
    return std::make_unique<Rig>(
        site, options, Fill(options.topology, [&](int32_t, int32_t) { return 1 + (*random)() % 30; }), random);
  }

  RigOptions options;
  std::shared_ptr<CallSite> site;
  std::unique_ptr<Everywhere> exchange;
  std::mt19937_64* random;
};

struct ProgramOptions {
  planner::Topology topology = MakeTopology(3, 2);
  std::vector<planner::Scheduler> calls = {planner::Scheduler::kFast};
  int64_t row_bytes = 800;
  int32_t groups = 1;
  Owners owners = Owners::kServers;  // or halves of them
  bool in_order = false;             // of devices and ranks
  uint64_t seed = 3;
  int64_t first_timeout_ms = kNoTimeoutMs;
};

struct Program {
  explicit Program(const ProgramOptions& given = {})
      : random(given.seed),
        processes(given.topology.servers * (given.owners == Owners::kHalves ? 2 : 1), given.seed),
        network(processes.network) {
    for (const planner::Scheduler scheduler : given.calls) {
      Call call;
      call.options.topology = given.topology;
      call.options.scheduler = scheduler;
      call.options.row_bytes = given.row_bytes;
      call.site = MakeSite(given.groups, given.topology.devices(),
                           calls.empty() ? given.first_timeout_ms : kNoTimeoutMs, given.in_order ? nullptr : &random);
      call.site->channel = static_cast<int64_t>(calls.size()) + 1;
      Deal(given.owners, given.topology.devices_per_server, &random, call.site.get());
      call.exchange = std::make_unique<Everywhere>(&processes, call.site, call.options);
      call.random = &random;
      calls.push_back(std::move(call));
    }
  }

  // On all devices.
  Outcomes Start(const Call& call, Rig* rig, int64_t run_id = 1) {
    Outcomes outcomes(call.site->partitions());
    rig->StartAll(call.exchange.get(), run_id, outcomes);
    return outcomes;
  }
  // The same, and its rows stay in flight.
  Outcomes StartHeld(const Call& call, Rig* rig, int64_t run_id = 1) {
    network.Hold(true);
    Outcomes outcomes = Start(call, rig, run_id);
    network.WaitQuiet();
    CHECK_GT(network.OpenRequests(), 0);
    network.Hold(false);
    return outcomes;
  }
  // A tick of so much later.
  void Tick(int32_t process, std::chrono::minutes later) {
    network.RunOn(process,
                  [&] { processes.stations[process]->rendezvous.OnTick(std::chrono::steady_clock::now() + later); });
  }
  void TickAll(std::chrono::minutes later) {
    for (int32_t p = 0; p < network.transport(0)->processes(); ++p) Tick(p, later);
  }
  // Memory that a failed exchange still used would be missed: sanitizers see it.
  void CheckNextIsRight(const Call& call) {
    network.LetGo();
    network.WaitQuiet();
    call.MakeRig()->CheckRun(call.exchange.get(), 100, false);
    CHECK_EQ(network.OpenRequests(), 0);
  }

  std::mt19937_64 random;
  Processes processes;
  LoopbackNetwork& network;
  std::vector<Call> calls;
};

constexpr std::chrono::minutes kHalf{40};  // more than half of the time-out is over
constexpr std::chrono::minutes kLate{70};  // all of it is

inline bool AnyCalled(const Outcomes& outcomes) {
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    if (outcomes.called(i)) return true;
  }
  return false;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_BACKENDS_NETWORK_PROGRAM_H_
