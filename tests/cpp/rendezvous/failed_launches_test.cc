// Devices that have failed at one call of a launch: nobody waits for them at another, in this process or elsewhere.
#include "rendezvous/failed_launches.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/status.h"
#include "rendezvous_rig.h"
#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

// A call site of a program with others.
std::shared_ptr<CallSite> SiteOf(const std::string& program, int32_t groups, int32_t group_size) {
  const auto site = MakeSite(groups, group_size);
  site->program = program;
  return site;
}

std::shared_ptr<TestRendezvous> MakeFailing(const std::shared_ptr<CallSite>& site, const std::string& why,
                                            int32_t process = kAllProcesses) {
  site->process_of.assign(site->group_of.size(), 0);
  return Create(
      site, [why](TestSession* session, int32_t) { session->Finish(Status::Invalid(why)); }, process, nullptr,
      [](int64_t, int32_t, const Status&) {});
}

// Whoever waits at another call of the launch for a device that has failed is told why, at once.
TEST(FailuresAreToldElsewhere) {
  std::atomic<int64_t> met{0};
  const auto failing = MakeFailing(SiteOf("told elsewhere", 2, 3), "the first");
  const auto also_failing = MakeFailing(SiteOf("told elsewhere", 2, 3), "the second");
  const auto waiting = MakeRendezvous(SiteOf("told elsewhere", 2, 3), &met);
  const Outcomes early(8);
  Arrive(waiting, {1, 0, 1, 0}, early.For(0));
  Arrive(waiting, {1, 1, 1, 0}, early.For(1));  // a loop that does not wait
  Arrive(waiting, {1, 0, 1, 2}, early.For(2));
  Arrive(waiting, {1, 0, 0, 0}, early.For(3));  // another group
  Arrive(waiting, {2, 0, 1, 0}, early.For(4));  // another launch
  for (int32_t p = 0; p < 2; ++p) Arrive(failing, {1, 0, 1, p}, early.For(5 + p));
  for (int32_t i = 0; i < 7; ++i) CHECK(!early.called(i));
  Arrive(failing, {1, 0, 1, 2}, early.For(7));
  for (const int32_t i : {0, 1, 2, 5, 6, 7}) {
    early.Wait(i);
    CHECK(early.status(i).code == Code::kInvalidArgument);
    CHECK_EQ(early.status(i).message, "the first");
  }
  CHECK(!early.called(3) && !early.called(4));
  // Those who come later, to this call or another, first or once more; the error is the first one still.
  for (const int32_t p : {1, 0, 1}) CHECK_EQ(ArriveLate(waiting, {1, 0, 1, p}).message, "the first");
  for (const int32_t p : {2, 0, 1}) CHECK_EQ(ArriveLate(also_failing, {1, 0, 1, p}).message, "the first");
  for (const int32_t p : {1, 2}) Arrive(waiting, {1, 0, 0, p}, [](const Status&) {});
  for (const int32_t p : {1, 2}) Arrive(waiting, {2, 0, 1, p}, [](const Status&) {});
  early.WaitAll();
  CHECK(early.status(3).ok() && early.status(4).ok());
  CHECK_EQ(met.load(), 2);
  // Of two groups that fail, each is told its own error.
  const Outcomes second(3);
  for (int32_t p = 0; p < 3; ++p) Arrive(also_failing, {1, 0, 0, p}, second.For(p));
  second.WaitAll();
  CHECK_EQ(ArriveLate(waiting, {1, 1, 0, 1}).message, "the second");
  CHECK_EQ(ArriveLate(waiting, {1, 1, 1, 1}).message, "the first");
}

// A device that has failed may have come to another call before: nobody waits for it there.
TEST(FailedDevicesThatHaveArrived) {
  std::atomic<int64_t> met{0};
  const auto failing = MakeFailing(SiteOf("arrived", 3, 1), "failed");
  const auto waiting = MakeRendezvous(SiteOf("arrived", 1, 3), &met);
  const Outcomes outcomes(4);
  Arrive(waiting, {1, 0, 0, 0}, outcomes.For(0));
  Arrive(failing, {1, 0, 0, 0}, outcomes.For(1));
  Arrive(waiting, {1, 0, 0, 1}, outcomes.For(2));
  outcomes.Wait(1);
  CHECK(!outcomes.called(0) && !outcomes.called(2));
  Arrive(waiting, {1, 0, 0, 2}, outcomes.For(3));
  outcomes.Wait(0);
  CHECK(outcomes.status(0).ok());
  CHECK_EQ(met.load(), 1);
  // It does not come again.
  CHECK_EQ(ArriveLate(waiting, {1, 1, 0, 2}).message, "failed");
}

// Failures go from group to group, as far as devices wait for each other.
TEST(FailuresGoOn) {
  constexpr int32_t kDevices = 20;
  std::atomic<int64_t> met{0};
  const auto failing = MakeFailing(SiteOf("go on", kDevices, 1), "failed");
  std::vector<std::shared_ptr<TestRendezvous>> chain;
  for (int32_t i = 0; i + 1 < kDevices; ++i) {
    // Each call joins two neighbours; other devices are groups by themselves there.
    const auto site = SiteOf("go on", kDevices / 2, 2);
    if (i % 2 == 1) {
      for (int32_t p = 0; p < kDevices; ++p) {
        const int32_t shifted = (p + 1) % kDevices;
        site->group_of[shifted] = p / 2;
        site->position_of[shifted] = p % 2;
        site->partition_at[p] = shifted;
      }
    }
    chain.push_back(MakeRendezvous(site, &met));
  }
  const Outcomes outcomes(kDevices);
  for (int32_t i = 0; i + 1 < kDevices; ++i) {
    const int32_t waits = i + 1;  // for device i
    Arrive(chain[i], {1, 0, i / 2, 1}, outcomes.For(waits));
  }
  Arrive(failing, {1, 0, 0, 0}, outcomes.For(0));
  outcomes.WaitAll();
  for (int32_t i = 0; i < kDevices; ++i) CHECK_EQ(outcomes.status(i).message, "failed");
  CHECK_EQ(met.load(), 0);
}

// Programs of other names know nothing of each other's failures, nor does what is compiled later of earlier ones.
TEST(FailuresOfOtherExecutables) {
  struct Program {
    Program(const std::string& name, std::atomic<int64_t>* met) {
      const auto site = SiteOf(name, 1, 2);
      failing = MakeFailing(site, "failed");
      waiting = MakeRendezvous(site, met);
    }
    void Run() const {
      const Outcomes outcomes(3);
      Arrive(waiting, {1, 0, 0, 0}, outcomes.For(0));
      for (int32_t p = 0; p < 2; ++p) Arrive(failing, {1, 0, 0, p}, outcomes.For(1 + p));
      outcomes.WaitAll();
      for (int32_t i = 0; i < 3; ++i) CHECK_EQ(outcomes.status(i).message, "failed");
    }
    std::shared_ptr<TestRendezvous> failing, waiting;
  };
  std::atomic<int64_t> met{0};
  const Program first("first", &met);
  const Program other("other", &met);
  const Outcomes outcome(1);
  Arrive(other.waiting, {1, 0, 0, 0}, outcome.For(0));
  first.Run();
  CHECK(!outcome.called(0));
  Arrive(other.waiting, {1, 0, 0, 1}, [](const Status&) {});
  outcome.WaitAll();
  CHECK(outcome.status(0).ok());
  const Program later("first", &met);
  Meet(later.waiting, 1, 0, 2);
  later.Run();
  CHECK_EQ(met.load(), 2);
}

// Other processes are told once of each group that waits here for devices that have failed, or would.
TEST(Absence) {
  const auto failing = MakeFailing(SiteOf("absence", 4, 1), "failed", 0);
  std::vector<std::string> told;
  const auto site = SiteOf("absence", 2, 2);
  site->process_of.assign(4, 0);
  const auto waiting = Create(
      site, [](TestSession* session, int32_t last) { session->Finish(Status::Ok(), last); }, 0,
      [&](const TestSession& session, const Status& why) {
        told.push_back("in vain " + std::to_string(session.group()) + " " + why.message);
      },
      [&](int64_t run_id, int32_t group, const Status& why) {
        told.push_back("absent " + std::to_string(run_id) + " " + std::to_string(group) + " " + why.message);
      });
  const auto fail = [&](int64_t run_id, int32_t device) {
    const Outcomes outcome(1);
    Arrive(failing, {run_id, 0, device, 0}, outcome.For(0));
    outcome.WaitAll();
    CHECK(!outcome.status(0).ok());
  };
  const auto take = [&] { return std::exchange(told, {}); };
  const std::vector<std::string> nothing;
  fail(1, 2);
  CHECK(take() == std::vector<std::string>{"absent 1 1 failed"});
  // The others do not wait for it any more, though it comes, late, itself.
  CHECK_EQ(ArriveLate(waiting, {1, 0, 1, 0}).message, "failed");
  fail(1, 3);
  CHECK_EQ(ArriveLate(waiting, {1, 0, 1, 0}).message, "failed");
  CHECK(take() == nothing);
  // One waits here.
  Arrive(waiting, {2, 0, 0, 1}, [](const Status&) {});
  fail(2, 0);
  CHECK(take() == std::vector<std::string>{"in vain 0 failed"});
  fail(2, 1);
  CHECK(take() == nothing);
  // The failed one has arrived before: what it came to may still succeed.
  const Outcomes outcome(1);
  Arrive(waiting, {3, 0, 0, 0}, outcome.For(0));
  fail(3, 0);
  CHECK(take() == nothing);
  Arrive(waiting, {3, 0, 0, 1}, [](const Status&) {});
  outcome.WaitAll();
  CHECK(outcome.status(0).ok());
  CHECK_EQ(ArriveLate(waiting, {3, 1, 0, 1}).message, "failed");
  CHECK(take() == std::vector<std::string>{"absent 3 0 failed"});
}

// Devices fail on their threads while others come: nobody is left waiting, and nothing of the next launch fails.
TEST(FailuresWhileOthersArrive) {
  constexpr int32_t kDevices = 4;
  constexpr int32_t kCalls = 6;
  for (int64_t round = 0; round < 100; ++round) {
    const std::string program = "round " + std::to_string(round);
    std::atomic<int64_t> met{0};
    std::vector<std::shared_ptr<TestRendezvous>> calls;
    for (int32_t i = 0; i < kCalls; ++i) {
      calls.push_back(i == 2 ? MakeFailing(SiteOf(program, 1, kDevices), "failed")
                             : MakeRendezvous(SiteOf(program, 1, kDevices), &met));
    }
    // As in XLA, a device starts call after call, each in its own order, until one has failed.
    RunThreads(kDevices, [&](int32_t device) {
      std::mt19937_64 random(static_cast<uint64_t>(round * kDevices + device));
      const Outcomes outcomes(kCalls);
      std::atomic<bool> failed{false};
      std::vector<int32_t> begun;
      for (const int32_t i : Numbers(kCalls, &random)) {
        if (failed.load()) break;
        begun.push_back(i);
        Arrive(calls[i], {1, 0, 0, device}, [&failed, done = outcomes.For(i)](const Status& status) {
          if (!status.ok()) failed.store(true);
          done(status);
        });
      }
      for (const int32_t i : begun) {
        outcomes.Wait(i);
        if (!outcomes.status(i).ok()) CHECK_EQ(outcomes.status(i).message, "failed");
      }
      CHECK(failed.load());
    });
    for (int32_t i = 0; i < kCalls; ++i) {
      if (i != 2) Meet(calls[i], 2, 0, kDevices);
    }
  }
}

}  // namespace
}  // namespace fastjax::test
