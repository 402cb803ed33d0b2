// Exchanges between processes that fail: everybody is told, nothing is touched afterwards, other exchanges go on, and
// what is waited for is named.
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/runner.h"
#include "program.h"
#include "rendezvous/process_launch.h"
#include "runtime/copy_pool.h"
#include "support/check.h"
#include "support/job_rig.h"
#include "support/outcomes.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;
using std::chrono::steady_clock;

ProgramOptions Direct(int32_t servers, int32_t devices, int32_t groups = 1) {
  ProgramOptions options;
  options.topology = MakeTopology(servers, devices);
  options.calls = {Scheduler::kDirect};
  options.groups = groups;
  options.in_order = true;
  return options;
}

ProgramOptions OfTwo(int64_t first_timeout_ms = kNoTimeoutMs) {
  ProgramOptions options;
  options.calls = {Scheduler::kFast, Scheduler::kDirect};
  options.first_timeout_ms = first_timeout_ms;
  return options;
}

// What the devices of a process were told.
Status Told(const Call& call, const Outcomes& outcomes, int32_t process) {
  Status told;
  for (int32_t p = 0; p < outcomes.count(); ++p) {
    if (call.site->process_of[p] == process) told = outcomes.status(p);
  }
  return told;
}

// Everybody gives up, or one dies, after any number of steps: before the processes have met, while rows move or are
// about to, and while the pool copies.
TEST(GiveUpAtAnyMoment) {
  for (uint64_t round = 0; round < 80; ++round) {
    const bool held = round % 2 == 0, killed = round % 4 >= 2;
    ProgramOptions options;
    options.calls = {round % 8 < 4 ? Scheduler::kFast : Scheduler::kDirect};
    options.row_bytes = round % 3 == 0 ? 20'000 : 800;
    options.seed = round;
    Program program(options);
    const Call& call = program.calls[0];
    program.network.SetTicking(false);
    auto rig = call.MakeRig();
    const Outcomes outcomes = program.Start(call, rig.get());
    for (uint64_t i = 0; i < round % 12; ++i) program.network.RunOn(0, [] {});
    program.network.Hold(held);
    for (uint64_t i = 0; i < round % 5; ++i) program.network.RunOn(0, [] {});
    if (killed) program.network.Kill(2);
    program.Tick(0, kLate);  // the others are told
    for (int i = 0; i < 3 && (held || killed); ++i) {
      program.network.WaitQuiet();
      program.TickAll(kLate);  // what does not end by itself ends with the connection
    }
    outcomes.WaitAll();
    if (!held && !killed) CHECK_EQ(program.network.disconnects(), 0);
    for (int32_t p = 0; p < outcomes.count(); ++p) {
      const std::string message = outcomes.status(p).message;
      CHECK(message.empty() || Contains(message, " waited 3600.0 s for process ") ||
            Contains(message, "nothing has moved for 3600.0 s") || (killed && Contains(message, "is gone: killed")) ||
            ((held || killed) && Contains(message, " disconnected")));
    }
    CHECK(outcomes.all_ok() ? rig->IsRight() : rig->GuardsAreWhole());
    rig = nullptr;
    if (!killed) program.CheckNextIsRight(call);
  }
}

const std::string kWaitingForOne =
    "nothing has moved for 3600.0 s. Waiting for stage 1 of 1: 1 message to receive from process 1 (host b): device 1; "
    "stage 1 of 1: 1 message to send to process 1 (host b): device 1";

// A process that is silent: the others know whom they wait for, and get their memory back only when they have
// disconnected from it: at once where it has been asked, once, and has not answered.
TEST(Silence) {
  for (const bool all_ask : {false, true}) {
    Program program(Direct(3, 1));
    program.network.SetTicking(false);
    const auto rig = program.calls[0].MakeRig();
    const Outcomes outcomes = program.StartHeld(program.calls[0], rig.get());
    program.network.Cut(1);
    program.network.LetGo();
    program.network.WaitQuiet();
    for (int i = 0; i < 2 && all_ask; ++i) program.TickAll(kHalf);  // nothing has moved since the first time
    CHECK_EQ(program.network.probes(), all_ask ? 4 : 0);            // of 1 by 0 and 2, and of both by 1
    CHECK_EQ(program.network.disconnects(), 0);
    for (const int32_t process : {0, 1}) program.Tick(process, kLate);  // 2 is told
    program.network.WaitQuiet();
    CHECK_EQ(program.network.disconnects(), all_ask ? 4 : 3);
    if (!all_ask) CHECK(!outcomes.called(2));
    program.TickAll(kLate);
    outcomes.WaitAll();
    CHECK_EQ(program.network.OpenRequests(), 0);
    CHECK_EQ(program.network.disconnects(), 4);
    for (const int32_t process : {0, 2}) CHECK_CONTAINS(outcomes.status(process).message, kWaitingForOne);
  }
}

// Who answers is kept.
TEST(Answers) {
  Program program(Direct(2, 1));
  program.network.SetTicking(false);
  const auto rig = program.calls[0].MakeRig();
  const Outcomes outcomes = program.StartHeld(program.calls[0], rig.get());
  program.TickAll(kHalf);
  program.Tick(0, kLate);  // 1 is told
  program.network.WaitQuiet();
  CHECK_EQ(program.network.probes(), 2);
  CHECK_EQ(program.network.disconnects(), 0);
  program.TickAll(kLate);
  outcomes.WaitAll();
}

// One process cannot plan, and throws away what comes for it: its senders need not be disconnected.
TEST(DroppedRows) {
  for (int round = 0; round < 10; ++round) {
    Program program;
    program.network.SetTicking(false);
    Call& call = program.calls[0];
    call.options.exchange.plan = PlansItself();
    call.exchange = std::make_unique<Everywhere>(
        &program.processes, call.site, call.options, [](size_t process, PlanFunction plan) -> PlanFunction {
          if (process != 1) return plan;
          return [](const int64_t*, const TakePlan&, bool*) { return Status::Internal("no room"); };
        });
    const auto rig = call.MakeRig();
    const Outcomes outcomes = program.Start(call, rig.get());
    outcomes.WaitAll();
    CHECK_EQ(Told(call, outcomes, 1).message, "no room");
    for (const int32_t process : {0, 2}) {
      CHECK_CONTAINS(Told(call, outcomes, process).message, "process 1 (host b) gave up: no room");
    }
    program.network.WaitQuiet();
    CHECK_EQ(program.network.disconnects(), 0);
    CHECK_EQ(program.network.OpenRequests(), 0);
  }
}

// What devices of a process are told that waited while rows were held; any rows, unless given.
std::string WaitedFor(const ProgramOptions& options, int32_t process, const Matrix& rows = {}) {
  Program program(options);
  const Call& call = program.calls[0];
  const auto rig =
      rows.empty() ? call.MakeRig() : std::make_unique<Rig>(call.site, call.options, rows, &program.random);
  const Outcomes outcomes = program.StartHeld(call, rig.get());
  program.Tick(process, kLate);
  program.TickAll(kLate);
  outcomes.WaitAll();
  return Told(call, outcomes, process).message;
}

TEST(Waiting) {
  CHECK_EQ(network::Runner().Waiting(), "nothing");
  const std::string of_many = WaitedFor(Direct(8, 1), 3);
  CHECK_CONTAINS(of_many, "1 message to receive from process 0 (host a): device 0; ");
  CHECK_CONTAINS(of_many, "process 5 (host f): device 5; ");
  CHECK_CONTAINS(of_many, "; and 8 more");
  CHECK_CONTAINS(WaitedFor(Direct(2, 2, 2), 0),
                 "stage 1 of 1: 4 messages to receive from process 1 (host b): devices 2, 3; stage 1 of 1: 4 messages "
                 "to send to process 1 (host b): devices 2, 3 (group ");
  // Where every device is a process of its own, rows that are balanced or local are messages, too: device 0 sends
  // across alone, so that device 1 takes half of it on.
  ProgramOptions halves = Direct(2, 2);
  halves.calls = {Scheduler::kFast};
  halves.owners = Owners::kHalves;
  Matrix rows(16, 0);
  rows[0 * 4 + 2] = 200;
  rows[1 * 4 + 0] = 5;
  CHECK_CONTAINS(
      WaitedFor(halves, 0, rows),
      "inside a server: 1 message to receive from process 1 (host b): device 1; balance before stage 1 of 1: "
      "1 message to send to process 1 (host b): device 1; stage 1 of 1: 1 message to send to process 2 ");
  // The pool's threads copy nothing until they are let go.
  std::promise<void> go;
  const std::shared_future<void> going = go.get_future().share();
  std::vector<std::unique_ptr<CopyJob>> jobs;
  const Outcomes freed(CopyPool::Get().threads());
  std::byte from{};
  std::byte to{};
  for (int32_t i = 0; i < freed.count(); ++i) {
    jobs.push_back(std::make_unique<CopyJob>());
    jobs.back()->Add({&to, &from, 1, kernels::Destination::kCached});
    CopyPool::Get().Run(jobs.back().get(), -1, [going, done = freed.For(i)] {
      going.wait();
      done(Status::Ok());
    });
  }
  ProgramOptions options;
  options.row_bytes = 60'000;
  Program program(options);
  const auto rig = program.calls[0].MakeRig();
  const Outcomes outcomes = program.Start(program.calls[0], rig.get());
  program.network.WaitQuiet();
  program.Tick(0, kLate);
  go.set_value();
  outcomes.WaitAll();
  CHECK_CONTAINS(Told(program.calls[0], outcomes, 0).message, " copy jobs inside this process");
  freed.WaitAll();
}

// A process that cannot even describe what its devices bring tells the others; and so does one without room for the
// launch.
TEST(NothingToTell) {
  struct OneLaunch final : ProcessLaunch<ExchangeArgs> {
    OneLaunch(const Site& site, Recorder* recorder, int) : ProcessLaunch(site, recorder) { throw std::bad_alloc(); }
    Status Prepare(bool*) override { return Status::Ok(); }
    LaunchSummary summary() const override { return {}; }
  };
  for (const bool described : {false, true}) {
    Program program;
    const Call& call = program.calls[0];
    std::shared_ptr<Exchange> without;
    if (described) {
      // As in a job, all processes have made the call site once more.
      program.calls[0].exchange = std::make_unique<Everywhere>(&program.processes, call.site, call.options);
      without = OpenRendezvous<ProcessOperation<OneLaunch, int>>(program.processes.stations[1], call.site,
                                                                 Describe(call.options.exchange),
                                                                 std::make_unique<Recorder>(call.site, SiteKind{}), 0);
    }
    const auto rig = call.MakeRig();
    const Outcomes outcomes(6);
    for (int32_t p = 0; p < 6; ++p) {
      if (call.site->process_of[p] != 1) {
        rig->Start(call.exchange.get(), 1, p, outcomes.For(p));
      } else if (described) {
        without->Start(1, p, {}, outcomes.For(p));
      } else {
        ExchangeArgs endless;
        endless.send_sizes.size = int64_t{1} << 61;
        call.exchange->Start(1, p, endless, outcomes.For(p));
      }
    }
    outcomes.WaitAll();
    for (int32_t p = 0; p < 6; ++p) {
      CHECK(!outcomes.status(p).ok());
      CHECK_EQ(Contains(outcomes.status(p).message, "process 1 (host b) gave up: "), call.site->process_of[p] != 1);
      if (described) CHECK_CONTAINS(outcomes.status(p).message, "bad_alloc");
    }
    CHECK(rig->IsUntouched());
  }
}

// A device that cannot take part: those of its process, and of the others, need not wait for the time-out. Before its
// process knows of it, the others have come, or come later.
TEST(Refusal) {
  for (const int32_t last : {0, 1, 2}) {
    Program program;
    const Call& call = program.calls[0];
    const auto rig = call.MakeRig();
    const Outcomes outcomes(6);
    for (const int32_t process : {(last + 1) % 3, (last + 2) % 3, last}) {
      bool first = true;
      for (int32_t p = 0; p < 6; ++p) {
        if (call.site->process_of[p] != process) continue;
        if (process == 1 && std::exchange(first, false)) {
          call.exchange->FailGroup(1, p, Status::Internal("no room"), outcomes.For(p));
        } else {
          rig->Start(call.exchange.get(), 1, p, outcomes.For(p));
        }
      }
      program.network.WaitQuiet();
    }
    outcomes.WaitAll();
    for (int32_t p = 0; p < 6; ++p) {
      CHECK_CONTAINS(outcomes.status(p).message, " cannot take part: no room");
      CHECK_EQ(Contains(outcomes.status(p).message, "process 1 (host b) gave up: "), call.site->process_of[p] != 1);
    }
    CHECK(rig->IsUntouched());
    program.CheckNextIsRight(call);
  }
}

// A program with other shapes in one process, or more slices: nothing lands where there is no room for it.
TEST(OtherShapes) {
  for (const bool slices : {false, true}) {
    Program program;
    Call& call = program.calls[0];
    const auto rig = call.MakeRig();
    if (slices) call.options.per_peer = 2;
    if (!slices) call.options.row_bytes *= 2;
    const auto other = call.MakeRig();
    const Outcomes outcomes(6);
    for (const int32_t process : {0, 1, 2}) {
      (process == 1 ? other : rig)->StartAll(call.exchange.get(), 1, outcomes, process);
    }
    outcomes.WaitAll();
    for (int32_t p = 0; p < 6; ++p) {
      CHECK(outcomes.status(p).code == (slices ? Code::kInternal : Code::kInvalidArgument));
      CHECK_CONTAINS(outcomes.status(p).message, slices ? "other numbers of slices" : "other shapes or another type");
    }
    CHECK(rig->IsUntouched());
    CHECK(other->IsUntouched());
  }
}

// Rows that take longer than the time-out are not stuck while they move.
TEST(Slow) {
  Program program;
  program.network.SetTicking(false);
  const auto rig = program.calls[0].MakeRig();
  const Outcomes outcomes = program.StartHeld(program.calls[0], rig.get());
  const auto begun = steady_clock::now();
  while (steady_clock::now() == begun) {
  }
  program.network.Crawl();
  for (int32_t p = 0; p < 3; ++p) {
    program.network.RunOn(
        p, [&] { program.processes.stations[p]->rendezvous.OnTick(begun + std::chrono::milliseconds(kNoTimeoutMs)); });
  }
  program.network.WaitQuiet();
  CHECK(!AnyCalled(outcomes));
  program.network.LetGo();
  rig->CheckEnd(outcomes);
}

// A process ends while it waits for the others, or while rows move: its devices are told, whose program could not end
// otherwise, and so are the others, whether they had come or come later; and whoever comes afterwards.
TEST(Closed) {
  for (const bool in_flight : {false, true}) {
    Program program;
    const Call& call = program.calls[0];
    const auto rig = call.MakeRig();
    const Outcomes outcomes(6);
    program.network.Hold(true);
    for (int32_t process = 0; process < 2 + in_flight; ++process) {
      rig->StartAll(call.exchange.get(), 1, outcomes, process);
    }
    program.network.WaitQuiet();
    program.network.Close(0);
    if (!in_flight) rig->StartAll(call.exchange.get(), 1, outcomes, 2);
    outcomes.WaitAll();
    for (int32_t p = 0; p < 6; ++p) {
      CHECK(outcomes.status(p).code == Code::kUnavailable);
      CHECK_CONTAINS(outcomes.status(p).message,
                     in_flight ? "(host a) closes its network. Waiting for" : "(host a) closes its network");
    }
    CHECK_EQ(program.network.OpenRequests(), 0);
    const auto next = call.MakeRig();
    const Outcomes refused(6);
    next->StartAll(call.exchange.get(), 2, refused, 0);
    for (int32_t p = 0; p < 6; ++p) {
      if (call.site->process_of[p] != 0) continue;
      refused.Wait(p);
      CHECK_CONTAINS(refused.status(p).message, "the network of this process has been closed");
    }
  }
}

// A mistake of one exchange is its own: errors name its call site, and the other goes on.
TEST(MistakeOfOne) {
  Program program(OfTwo());
  const auto slow = program.calls[0].MakeRig();
  const Outcomes outcomes = program.StartHeld(program.calls[0], slow.get());
  const auto wrong = program.calls[1].MakeRig();
  wrong->table(program.calls[1].site->partition(0, 4))[10] ^= 1;  // its checksum does not match any more
  const Outcomes refused = wrong->Run(program.calls[1].exchange.get(), 1, true);
  for (int32_t p = 0; p < 6; ++p) {
    CHECK_CONTAINS(refused.status(p).message, "(channel 2): the plan of device 4 is not usable");
  }
  CHECK(!AnyCalled(outcomes));
  program.network.LetGo();
  slow->CheckEnd(outcomes);
  CHECK(wrong->GuardsAreWhole());
}

// A message of one exchange that is not as long as the plan says ends that one, where not all is there yet, and leaves
// the connection.
TEST(DamageOfOne) {
  for (const int64_t damage : {-3, 8}) {
    Program program(OfTwo());
    const auto slow = program.calls[0].MakeRig();
    const Outcomes outcomes = program.StartHeld(program.calls[0], slow.get());
    program.network.DamageNext(1, damage);
    const auto damaged = program.calls[1].MakeRig();
    const Outcomes failed = damaged->Run(program.calls[1].exchange.get(), 1, true);
    bool named = false;
    for (int32_t p = 0; p < 6; ++p) {
      const std::string message = failed.status(p).message;
      CHECK_EQ(Contains(message, "(channel 2): "), !failed.status(p).ok());
      CHECK(!Contains(message, "channel 1"));
      named = named || (Contains(message, "(channel 2): stage 1 of 1: device ") &&
                        Contains(message, " could not receive from device ") &&
                        Contains(message, " of process 1 (host b): got ") && Contains(message, " bytes instead of "));
    }
    CHECK(named);
    CHECK(!AnyCalled(outcomes));
    CHECK_EQ(program.network.disconnects(), 0);
    program.network.LetGo();
    slow->CheckEnd(outcomes);
    CHECK(damaged->GuardsAreWhole());
    program.CheckNextIsRight(program.calls[1]);
  }
}

// A process that is lost takes both with it, at once, and each error is about its own exchange.
TEST(Killed) {
  Program program(OfTwo());
  std::vector<std::unique_ptr<Rig>> rigs;
  std::vector<Outcomes> outcomes;
  for (const Call& call : program.calls) {
    rigs.push_back(call.MakeRig());
    outcomes.push_back(program.StartHeld(call, rigs.back().get()));
  }
  program.network.Kill(2);
  for (size_t i = 0; i < program.calls.size(); ++i) {
    for (int32_t p = 0; p < 6; ++p) {
      if (program.calls[i].site->process_of[p] == 2) continue;
      outcomes[i].Wait(p);
      CHECK(outcomes[i].status(p).code == Code::kUnavailable);
      CHECK_CONTAINS(outcomes[i].status(p).message, "(channel " + std::to_string(i + 1) + "): ");
      CHECK_CONTAINS(outcomes[i].status(p).message, "process 2 (host c) is gone: killed");
      CHECK(!Contains(outcomes[i].status(p).message, "(channel " + std::to_string(2 - i) + "): "));
    }
  }
}

// Time runs out for the one that nothing moves of. The one beside it ends well, and so does the next of either.
TEST(OneTimesOut) {
  Program program(OfTwo(kNoTimeoutMs / 2));
  const auto stuck = program.calls[0].MakeRig();
  const Outcomes outcomes = program.StartHeld(program.calls[0], stuck.get());
  program.calls[1].MakeRig()->CheckRun(program.calls[1].exchange.get(), 1, true);
  program.TickAll(kHalf);
  program.TickAll(kHalf);
  outcomes.WaitAll();
  int64_t named = 0;
  for (int32_t p = 0; p < 6; ++p) {
    const std::string message = outcomes.status(p).message;
    CHECK_CONTAINS(message, "(channel 1): ");
    CHECK(!Contains(message, "channel 2"));
    named += Contains(message, "nothing has moved for 1800.0 s. Waiting for stage") ? 1 : 0;
  }
  CHECK_GE(named, 2);
  for (const Call& call : program.calls) program.CheckNextIsRight(call);
}

}  // namespace
}  // namespace fastjax::test
