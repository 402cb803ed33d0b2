// Several exchanges of one program that are in flight at once, over transports inside one process.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/exchange_rig.h"
#include "support/job_rig.h"
#include "support/loopback_transport.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

constexpr int32_t kDevices = 6;
constexpr Scheduler kSchedulers[] = {Scheduler::kFast, Scheduler::kDirect, Scheduler::kBalanced, Scheduler::kSpreadout};

// One call site of the program.
struct Call {
  Call(Processes* processes, int64_t channel, Scheduler scheduler, int64_t timeout_ms, std::mt19937_64* random)
      : random_(random) {
    options.topology = MakeTopology(3, 2);
    options.row_bytes = 800;
    options.scheduler = scheduler;
    auto made = MakeSite(1, kDevices, timeout_ms, random);
    made->channel = channel;
    Deal(Owners::kServers, 2, random, made.get());
    site = std::move(made);
    exchange = std::make_unique<Everywhere>(processes, site, options);
  }
  std::unique_ptr<Rig> MakeRig() {
    return std::make_unique<Rig>(site, options, MakeCases(options.topology, (*random_)())[2].traffic, random_);
  }

  RigOptions options;
  std::shared_ptr<const CallSite> site;
  std::unique_ptr<Everywhere> exchange;

 private:
  std::mt19937_64* random_;
};

// A job of three processes with two devices each, and a program of several exchanges, of which the first may have a
// limit.
struct Program {
  explicit Program(int32_t calls, int64_t first_timeout_ms = kNoTimeoutMs)
      : processes(3, 5), network(processes.network) {
    for (int32_t i = 0; i < calls; ++i) {
      all.emplace_back(&processes, i + 1, kSchedulers[i], i == 0 ? first_timeout_ms : kNoTimeoutMs, &random);
    }
  }

  // Starts the call on all devices, and has its rows stay in flight.
  void StartAndFreeze(Call* call, Rig* rig, int64_t run_id, const Outcomes& outcomes) {
    network.Hold(true);
    rig->StartAll(call->exchange.get(), run_id, outcomes);
    network.WaitQuiet();
    CHECK_GT(network.OpenRequests(), 0);
    network.Freeze(true);
    network.Hold(false);
  }

  std::mt19937_64 random{3};
  Processes processes;
  LoopbackNetwork& network;
  std::vector<Call> all;
};

bool AnyCalled(const Outcomes& outcomes) {
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    if (outcomes.called(i)) return true;
  }
  return false;
}

// An exchange whose rows do not arrive holds up no other: of another call site, or another launch of its own.
TEST(LaterEndsFirst) {
  for (const bool same_site : {false, true}) {
    Program program(2);
    Call& first = program.all[0];
    Call& second = program.all[same_site ? 0 : 1];
    auto slow = first.MakeRig();
    const Outcomes outcomes(kDevices);
    program.StartAndFreeze(&first, slow.get(), 1, outcomes);
    for (int64_t run_id = 2; run_id < 5; ++run_id) {
      auto rig = second.MakeRig();
      rig->CheckRun(second.exchange.get(), run_id, true);
    }
    CHECK(!AnyCalled(outcomes));
    program.network.Freeze(false);
    slow->CheckEnd(outcomes);
    CHECK_EQ(program.network.OpenRequests(), 0);
  }
}

// Devices come to four exchanges in orders of their own, each of a process as another.
TEST(Orders) {
  Program program(4);
  for (int64_t run_id = 1; run_id <= 25; ++run_id) {
    std::vector<std::unique_ptr<Rig>> rigs;
    std::vector<Outcomes> outcomes;
    std::array<std::vector<int32_t>, kDevices> orders;
    for (Call& call : program.all) {
      rigs.push_back(call.MakeRig());
      outcomes.emplace_back(kDevices);
    }
    for (auto& order : orders) order = Numbers(4, &program.random);
    RunThreads(kDevices, [&](int32_t device) {
      for (const int32_t call : orders[static_cast<size_t>(device)]) {
        rigs[static_cast<size_t>(call)]->Start(program.all[static_cast<size_t>(call)].exchange.get(), run_id, device,
                                               outcomes[static_cast<size_t>(call)].For(device));
      }
    });
    for (size_t i = 0; i < rigs.size(); ++i) {
      rigs[i]->CheckEnd(outcomes[i]);
    }
  }
  CHECK_EQ(program.network.OpenRequests(), 0);
}

// A mistake of one exchange is its own: errors name its call site, and the other goes on.
TEST(MistakeOfOne) {
  Program program(2);
  auto slow = program.all[0].MakeRig();
  const Outcomes outcomes(kDevices);
  program.StartAndFreeze(&program.all[0], slow.get(), 1, outcomes);
  auto wrong = program.all[1].MakeRig();
  wrong->table(program.all[1].site->partition(0, 4))[10] ^= 1;  // its checksum does not match any more
  const Outcomes refused = wrong->Run(program.all[1].exchange.get(), 1, true);
  for (int32_t p = 0; p < kDevices; ++p) {
    CHECK_CONTAINS(refused.status(p).message, "(channel 2): the plan of device 4 is not usable");
  }
  CHECK(!AnyCalled(outcomes));
  program.network.Freeze(false);
  slow->CheckEnd(outcomes);
  CHECK(wrong->GuardsAreWhole());
}

// A message of one exchange that is too long ends that one, where not all is there yet, and leaves the connection.
TEST(DamageOfOne) {
  Program program(2);
  auto slow = program.all[0].MakeRig();
  const Outcomes outcomes(kDevices);
  program.StartAndFreeze(&program.all[0], slow.get(), 1, outcomes);
  program.network.DamageNext(1, 8);
  auto damaged = program.all[1].MakeRig();
  const Outcomes failed = damaged->Run(program.all[1].exchange.get(), 1, true);
  CHECK(!failed.all_ok());
  for (int32_t p = 0; p < kDevices; ++p) {
    CHECK_EQ(Contains(failed.status(p).message, "(channel 2): "), !failed.status(p).ok());
    CHECK(!Contains(failed.status(p).message, "channel 1"));
  }
  CHECK(!AnyCalled(outcomes));
  CHECK_EQ(program.network.disconnects(), 0);
  program.network.Freeze(false);
  slow->CheckEnd(outcomes);
  CHECK(damaged->GuardsAreWhole());
  auto next = program.all[1].MakeRig();
  next->CheckRun(program.all[1].exchange.get(), 2, true);
}

// A process that is lost takes both with it, at once, and each error is about its own exchange.
TEST(Killed) {
  Program program(2);
  std::vector<std::unique_ptr<Rig>> rigs;
  std::vector<Outcomes> outcomes;
  program.network.Hold(true);
  for (Call& call : program.all) {
    rigs.push_back(call.MakeRig());
    outcomes.emplace_back(kDevices);
    rigs.back()->StartAll(call.exchange.get(), 1, outcomes.back());
  }
  program.network.WaitQuiet();
  program.network.Kill(2);
  for (size_t i = 0; i < program.all.size(); ++i) {
    const std::string own = "(channel " + std::to_string(i + 1) + "): ";
    const std::string other = "(channel " + std::to_string(2 - i) + "): ";
    for (int32_t p = 0; p < kDevices; ++p) {
      if (program.all[i].site->process_of[p] == 2) continue;
      outcomes[i].Wait(p);
      CHECK(outcomes[i].status(p).code == Code::kUnavailable);
      CHECK_CONTAINS(outcomes[i].status(p).message, own);
      CHECK(!Contains(outcomes[i].status(p).message, other));
    }
  }
}

// Time runs out for the one that nothing moves of. The one beside it ends well, and so does the next of either.
TEST(OneTimesOut) {
  Program program(2, 1000);
  auto stuck = program.all[0].MakeRig();
  const Outcomes outcomes(kDevices);
  program.StartAndFreeze(&program.all[0], stuck.get(), 1, outcomes);
  auto beside = program.all[1].MakeRig();
  beside->CheckRun(program.all[1].exchange.get(), 1, true);
  outcomes.WaitAll();
  int64_t named = 0;
  for (int32_t p = 0; p < kDevices; ++p) {
    CHECK_CONTAINS(outcomes.status(p).message, "(channel 1): ");
    CHECK(!Contains(outcomes.status(p).message, "channel 2"));
    named += Contains(outcomes.status(p).message, "nothing has moved for 1.0 s. Waiting for stage") ? 1 : 0;
  }
  CHECK_GE(named, 2);
  program.network.Freeze(false);
  for (Call& call : program.all) {
    auto rig = call.MakeRig();
    rig->CheckRun(call.exchange.get(), 100, true);
  }
}

constexpr int32_t kKilled = 2;

// What plans until it is let go, in all processes.
struct SlowPlan {
  SlowPlan(Processes* processes, const std::shared_ptr<const CallSite>& at, const RigOptions& options) : site(at) {
    for (const auto& backend : processes->backends) {
      ExchangeOptions own = options.exchange;
      own.plan = [going = going, begun = begun, fails = fails, process = exchanges.size(),
                  plan = PlanSlices(options.topology, options.scheduler, options.row_bytes)](
                     const int64_t* traffic, const TakeSlices& take, bool* made) {
        ++*begun;
        going.wait();
        if (*fails && process != kKilled) return Status::Internal("no room");
        return plan(traffic, take, made);
      };
      exchanges.push_back(backend->OpenExchange(site, own));
    }
  }
  void Start(Rig* rig, int64_t run_id, const Outcomes& outcomes) {
    for (int32_t p = 0; p < outcomes.count(); ++p) {
      rig->Start(exchanges[static_cast<size_t>(site->process_of[p])].get(), run_id, p, outcomes.For(p));
    }
  }

  const std::shared_ptr<const CallSite> site;
  const std::shared_ptr<std::atomic<int>> begun = std::make_shared<std::atomic<int>>(0);  // in so many processes
  const std::shared_ptr<bool> fails = std::make_shared<bool>(false);
  std::promise<void> go;
  const std::shared_future<void> going = go.get_future().share();
  std::vector<std::shared_ptr<Exchange>> exchanges;  // by process
};

// A large group is planned for while rows of another exchange move. Meanwhile a process may be lost.
TEST(PlanningBeside) {
  constexpr int32_t kMany = 96;
  for (const bool killed : {false, true}) {
    std::mt19937_64 random(17);
    RigOptions options;
    options.topology = MakeTopology(3, kMany / 3);
    options.exchange.plan = PlansItself();
    const auto site = MakeSite(1, kMany, kNoTimeoutMs, &random);
    site->channel = 2;
    Deal(Owners::kServers, kMany / 3, &random, site.get());
    Rig planned(site, options, Fill(options.topology, [](int32_t i, int32_t j) { return (i + j) % 3; }), &random);
    Program program(1);
    SlowPlan slow(&program.processes, site, options);
    auto moving = program.all[0].MakeRig();
    const Outcomes outcomes(kDevices), later(kMany);
    program.StartAndFreeze(&program.all[0], moving.get(), 1, outcomes);
    slow.Start(&planned, 1, later);
    while (slow.begun->load() < 3) std::this_thread::yield();
    program.network.Freeze(false);
    moving->CheckEnd(outcomes);
    CHECK(!AnyCalled(later));
    if (killed) {
      program.network.Kill(kKilled);
      program.network.WaitQuiet();
      *slow.fails = true;
    }
    slow.go.set_value();
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
