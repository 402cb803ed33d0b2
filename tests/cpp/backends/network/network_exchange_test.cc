// The network backend whole, over transports inside one process: processes meet, plan and move rows, of several
// exchanges at once. network_faults_test.cc has what fails.
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "planner/planner.h"
#include "program.h"
#include "simulator/schedule.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/job_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

const std::vector<Scheduler> kFour = {Scheduler::kFast, Scheduler::kDirect, Scheduler::kBalanced,
                                      Scheduler::kSpreadout};

TEST(Exchanges) {
  std::mt19937_64 random(11);
  int64_t spread = 0;
  for (int trial = 0; trial < 60; ++trial) {
    RigOptions options = DrawOptions(&random);
    if (random() % 8 == 0) options.row_bytes = 0;
    if (random() % 8 == 0) options.row_bytes = 28'000;  // what the pool copies, and what is written past the caches
    const auto groups = static_cast<int32_t>(1 + random() % 2);
    const auto site = MakeSite(groups, options.topology.devices(), kNoTimeoutMs, &random);
    const int32_t count =
        Deal(static_cast<Owners>(random() % 4), options.topology.devices_per_server, &random, site.get());
    spread += count > 1 ? 1 : 0;
    const Context context(Name(options) + ", " + std::to_string(count) + " processes");
    Processes processes(count, random());
    Everywhere exchange(&processes, site, options);
    int64_t launch_id = 0;
    for (const Case& test_case : SomeCases(options.topology, random())) {
      const Context inner(test_case.name);
      Rig rig(site, options, test_case.traffic, &random);
      rig.CheckRun(&exchange, launch_id++ / 2, true);  // every run comes by twice
    }
    CHECK_EQ(processes.network.OpenRequests(), 0);
  }
  CHECK_GE(spread, 30);
}

// So many stages are in flight as are simulated, and no more.
TEST(Windows) {
  for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kSpreadout}) {
    ProgramOptions options;
    options.topology = MakeTopology(8, 1);
    options.calls = {scheduler};
    Program program(options);
    const auto rig = program.calls[0].MakeRig();
    const Outcomes outcomes = program.StartHeld(program.calls[0], rig.get());
    CHECK_EQ(program.network.most_sends(), simulator::kStagesInFlight);
    program.network.LetGo();
    rig->CheckEnd(outcomes);
    CHECK_EQ(program.network.most_sends(), simulator::kStagesInFlight);
    CHECK_EQ(program.network.most_receives(), simulator::kStagesInFlight);
  }
}

// An exchange whose rows do not arrive holds up no other: of another call site, or another launch of its own.
TEST(LaterEndsFirst) {
  ProgramOptions options;
  options.calls = {Scheduler::kFast, Scheduler::kDirect};
  for (const size_t beside : {0, 1}) {
    Program program(options);
    const Call& second = program.calls[beside];
    const auto slow = program.calls[0].MakeRig();
    const Outcomes outcomes = program.StartHeld(program.calls[0], slow.get());
    for (int64_t run_id = 2; run_id < 5; ++run_id) second.MakeRig()->CheckRun(second.exchange.get(), run_id, true);
    CHECK(!AnyCalled(outcomes));
    program.network.LetGo();
    slow->CheckEnd(outcomes);
    CHECK_EQ(program.network.OpenRequests(), 0);
  }
}

// Devices come to four exchanges in orders of their own, each of a process as another.
TEST(Orders) {
  ProgramOptions options;
  options.calls = kFour;
  Program program(options);
  const int32_t devices = options.topology.devices();
  for (int64_t run_id = 1; run_id <= 25; ++run_id) {
    std::vector<std::unique_ptr<Rig>> rigs;
    std::vector<Outcomes> outcomes;
    std::vector<std::vector<int32_t>> orders;
    for (const Call& call : program.calls) {
      rigs.push_back(call.MakeRig());
      outcomes.emplace_back(devices);
    }
    for (int32_t device = 0; device < devices; ++device) orders.push_back(Numbers(4, &program.random));
    RunThreads(devices, [&](int32_t device) {
      for (const int32_t call : orders[device]) {
        rigs[call]->Start(program.calls[call].exchange.get(), run_id, device, outcomes[call].For(device));
      }
    });
    for (size_t i = 0; i < rigs.size(); ++i) rigs[i]->CheckEnd(outcomes[i]);
  }
  CHECK_EQ(program.network.OpenRequests(), 0);
}

constexpr int32_t kKilled = 2;

// A large group is planned for while rows of another exchange move. Meanwhile a process may be lost.
TEST(PlanningBeside) {
  constexpr int32_t kMany = 96;
  for (const bool killed : {false, true}) {
    Program program;
    RigOptions options;
    options.topology = MakeTopology(3, kMany / 3);
    options.exchange.plan = PlansItself();
    const auto site = MakeSite(1, kMany, kNoTimeoutMs, &program.random);
    site->channel = 2;
    Deal(Owners::kServers, kMany / 3, &program.random, site.get());
    Rig planned(site, options, Fill(options.topology, [](int32_t i, int32_t j) { return (i + j) % 3; }),
                &program.random);
    std::promise<void> go;
    const std::shared_future<void> going = go.get_future().share();
    std::atomic<int> begun{0};  // in so many processes
    bool fails = false;
    Everywhere slow(&program.processes, site, options, [&](size_t process, const PlanFunction& plan) -> PlanFunction {
      return [&, process, plan](const int64_t* traffic, const TakePlan& take, bool* made) {
        ++begun;
        going.wait();
        if (fails && process != kKilled) return Status::Internal("no room");
        return plan(traffic, take, made);
      };
    });
    const auto moving = program.calls[0].MakeRig();
    const Outcomes outcomes = program.StartHeld(program.calls[0], moving.get());
    const Outcomes later(kMany);
    planned.StartAll(&slow, 1, later);
    while (begun < 3) std::this_thread::yield();
    program.network.LetGo();
    moving->CheckEnd(outcomes);
    CHECK(!AnyCalled(later));
    if (killed) {
      program.network.Kill(kKilled);
      program.network.WaitQuiet();
      fails = true;
    }
    go.set_value();
    // Nobody tells the lost process; it hears of nothing until it ends, which it does not before it has planned.
    if (killed) program.network.Close(kKilled);
    later.WaitAll();
    for (int32_t p = 0; p < kMany; ++p) {
      CHECK_EQ(later.status(p).ok(), !killed);
      if (killed) CHECK_CONTAINS(later.status(p).message, "(channel 2): ");
      // Survivors report what went wrong here meanwhile, too.
      if (killed && site->process_of[p] != kKilled) CHECK_CONTAINS(later.status(p).message, " Here: no room");
    }
    if (!killed) CHECK(planned.IsRight());
  }
}

}  // namespace
}  // namespace fastjax::test
