// Where devices meet: in any order, on any threads, in several groups and launches at once; what becomes of those that
// wait for a device that never comes; and what is said of counts that cannot be right.
#include "rendezvous/rendezvous.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exchange/status.h"
#include "rendezvous/counts.h"
#include "rendezvous_rig.h"
#include "runtime/completer.h"
#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Launches of one program, each device of each on a thread of its own. With `wait` a device repeats the call once the
// one before it is complete, as loops do; without, it does not wait.
void CheckArrivals(int32_t groups, int32_t group_size, int32_t runs, int32_t repetitions, bool wait) {
  const Context context(std::to_string(groups) + " groups of " + std::to_string(group_size) + ", " +
                        std::to_string(runs) + " runs" + (wait ? ", waiting" : ""));
  std::mt19937_64 random(1);
  const auto site = MakeSite(groups, group_size, kNoTimeoutMs, &random);
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(site, &met);
  const int32_t devices = site->partitions();
  std::vector<Outcomes> outcomes;
  for (int32_t i = 0; i < runs * devices; ++i) outcomes.emplace_back(repetitions);
  RunThreads(runs * devices, [&](int32_t thread) {
    const int32_t partition = thread % devices;
    LaunchId launch_id{100 + thread / devices, 0, site->group_of[partition], site->position_of[partition]};
    for (; launch_id.repetition < repetitions; ++launch_id.repetition) {
      Arrive(session, launch_id, outcomes[thread].For(launch_id.repetition));
      if (wait) outcomes[thread].Wait(launch_id.repetition);
    }
    outcomes[thread].WaitAll();
  });
  for (const Outcomes& of_device : outcomes) CHECK(of_device.all_ok());
  CHECK_EQ(met.load(), int64_t{runs} * groups * repetitions);
}

TEST(Arrivals) {
  for (const bool wait : {true, false}) {
    CheckArrivals(1, 1, 3, 50, wait);
    CheckArrivals(1, 8, 1, 200, wait);
    CheckArrivals(2, 4, 3, 60, wait);
    CheckArrivals(5, 2, 2, 60, wait);
    CheckArrivals(1, 2, 12, 60, wait);
  }
}

// Completions that wait for all others, as those of a program do that blocks in another collective.
void CheckBlockedCompletions(bool complete_here) {
  constexpr int32_t kDevices = 16;
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(MakeSite(1, kDevices), &met, complete_here);
  for (int64_t run = 0; run < 20; ++run) {
    Barrier all(kDevices);
    const Outcomes outcomes(kDevices);
    for (int32_t p = 0; p < kDevices; ++p) {
      Arrive(session, {run, 0, 0, p}, [&all, done = outcomes.For(p)](const Status& status) {
        all.Wait();
        done(status);
      });
    }
    outcomes.WaitAll();
    CHECK(outcomes.all_ok());
    std::set<std::thread::id> threads;
    for (int32_t p = 0; p < kDevices; ++p) threads.insert(outcomes.thread(p));
    CHECK_EQ(threads.size(), static_cast<size_t>(kDevices));
    CHECK_EQ(threads.count(std::this_thread::get_id()), complete_here ? 1U : 0U);
    if (complete_here) CHECK(outcomes.thread(kDevices - 1) == std::this_thread::get_id());
  }
}

TEST(BlockedCompletions) {
  for (const bool complete_here : {true, false}) CheckBlockedCompletions(complete_here);
}

// An action that ends its session later, from elsewhere.
TEST(FinishLater) {
  const auto site = MakeSite(2, 3);
  std::vector<TestSession*> sessions;
  const auto session = Create(site, [&](TestSession* session, int32_t) { sessions.push_back(session); });
  const Outcomes outcomes(2 * 6);
  for (int32_t repetition = 0; repetition < 2; ++repetition) {
    for (int32_t partition = 0; partition < 6; ++partition) {
      Arrive(session, {1, repetition, site->group_of[partition], site->position_of[partition]},
             outcomes.For(6 * repetition + partition));
    }
  }
  CHECK_EQ(sessions.size(), 4U);
  for (int32_t i = 0; i < outcomes.count(); ++i) CHECK(!outcomes.called(i));
  // Complete gatherings do not expire, however long their action takes.
  CHECK(!session->Expire(steady_clock::now() + 2 * milliseconds(kNoTimeoutMs)));
  for (const int32_t s : {2, 0, 3, 1}) sessions[s]->Finish(s == 3 ? Status::Invalid("third") : Status::Ok());
  outcomes.WaitAll();
  for (int32_t i = 0; i < outcomes.count(); ++i) CHECK_EQ(outcomes.status(i).message, i / 3 == 3 ? "third" : "");
}

std::string Timeout(const std::string& seconds, const std::string& missing, const std::string& here) {
  return "exchange over axis 'x' (channel 7): waited " + seconds + " s for device(s) " + missing +
         ", which did not arrive; device(s) " + here +
         " did. Every device of the axis must reach the call: look for a cond or while_loop that takes another way on "
         "those devices; or raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT if they are only "
         "slow.";
}

bool IsTimeout(const Status& status, const std::string& message) {
  const bool code = CHECK(status.code == Code::kDeadlineExceeded);
  return CHECK_EQ(status.message, message) && code;
}

// With the clock in hand.
TEST(Expiry) {
  const auto site = MakeSite(2, 4);
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(site, &met);
  const auto late = steady_clock::now() + 2 * milliseconds(kNoTimeoutMs);
  CHECK(!session->Expire(late));

  const Outcomes outcomes(4);
  Arrive(session, {1, 0, 1, 3}, outcomes.For(0));
  Arrive(session, {1, 0, 1, 1}, outcomes.For(1));
  Arrive(session, {1, 0, 0, 2}, outcomes.For(2));
  CHECK(session->Expire(steady_clock::now()));  // nothing is due, but there is something to wait for
  CHECK(!outcomes.called(0) && !outcomes.called(1) && !outcomes.called(2));
  // The other group of the same launch, and another launch, are complete and do not care.
  for (const int32_t p : {0, 1, 3}) Arrive(session, {1, 0, 0, p}, [](const Status&) {});
  Meet(session, 2, 1, 4);
  outcomes.Wait(2);
  CHECK(outcomes.status(2).ok());

  CHECK(!session->Expire(late));
  const std::string message = Timeout("3600.0", "0, 2 of group 1", "1, 3");
  for (const int32_t i : {0, 1}) {
    outcomes.Wait(i);
    IsTimeout(outcomes.status(i), message);
  }
  // The late ones hear at once what they missed; the next launch works.
  IsTimeout(ArriveLate(session, {1, 0, 1, 0}), message);
  IsTimeout(ArriveLate(session, {1, 0, 1, 2}), message);
  Meet(session, 3, 1, 4);
  CHECK(!session->Expire(late));
}

// What is written to stderr meanwhile.
std::string Said(const std::function<void()>& work) {
  std::FILE* const file = std::tmpfile();
  std::fflush(stderr);
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  work();
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

TEST(HalfOfTheTime) {
  for (const int64_t limit : {kNoTimeoutMs, int64_t{10'000}, int64_t{9'999}}) {
    const auto site = MakeSite(1, 3);
    site->timeout_ms = limit;
    std::atomic<int64_t> met{0};
    const auto session = MakeRendezvous(site, &met);
    const auto begin = steady_clock::now();
    const Outcomes outcomes(2);
    Arrive(session, {1, 0, 0, 0}, outcomes.For(0));
    Arrive(session, {1, 0, 0, 2}, outcomes.For(1));
    CHECK_EQ(Said([&] { session->Expire(begin + milliseconds(limit / 2 - 1000)); }), "");
    const auto half = begin + milliseconds(limit / 2 + 1000);
    const std::string text = Said([&] { CHECK(session->Expire(half)); });
    const std::string all = limit == kNoTimeoutMs ? "3600.0" : "10.0";
    const std::string waited = limit == kNoTimeoutMs ? "1800.0" : "5.0";
    CHECK_EQ(text, limit < 10'000 ? ""
                                  : "exchange over axis 'x' (channel 7): waited " + waited +
                                        " s for device(s) 1, which did not arrive; device(s) 0, 2 did. Waiting on, "
                                        "for " +
                                        all + " s in all.\n");
    CHECK_EQ(Said([&] { session->Expire(half); }), "");  // once
    Arrive(session, {1, 0, 0, 1}, [](const Status&) {});
    outcomes.WaitAll();
    CHECK(outcomes.all_ok());
  }
}

// Two repetitions of a loop time out while device 1 has seen neither.
TEST(ExpiryOfRepetitions) {
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(MakeSite(1, 3), &met);
  const Outcomes outcomes(4);
  Arrive(session, {5, 0, 0, 0}, outcomes.For(0));
  Arrive(session, {5, 1, 0, 0}, outcomes.For(1));
  Arrive(session, {5, 0, 0, 2}, outcomes.For(2));
  CHECK(!session->Expire(steady_clock::now() + 2 * milliseconds(kNoTimeoutMs)));
  for (const int32_t i : {0, 1, 2}) outcomes.Wait(i);
  const std::string both = Timeout("3600.0", "1", "0, 2");
  const std::string one = Timeout("3600.0", "1, 2", "0");
  IsTimeout(outcomes.status(0), both);
  IsTimeout(outcomes.status(1), one);
  IsTimeout(outcomes.status(2), both);
  // The first error counts for those who come late.
  IsTimeout(ArriveLate(session, {5, 1, 0, 2}), both);
  for (int32_t repetition = 0; repetition < 2; ++repetition) {
    IsTimeout(ArriveLate(session, {5, repetition, 0, 1}), both);
  }
  Meet(session, 6, 0, 3);
  CHECK_EQ(met.load(), 1);
}

// Ranks that one device executes need no threads.
TEST(FinishAllHere) {
  const auto site = MakeSite(1, 4);
  const auto session = Create(
      site, [](TestSession* session, int32_t) { session->Finish(Status::Internal("all"), TestSession::kAllHere); });
  for (int64_t run = 0; run < 3; ++run) {
    const Outcomes outcomes(4);
    for (int32_t p = 0; p < 4; ++p) {
      CHECK(!outcomes.called(0));
      Arrive(session, {run, 0, 0, p}, outcomes.For(p));
    }
    for (int32_t p = 0; p < 4; ++p) {
      CHECK(outcomes.called(p));
      CHECK_EQ(outcomes.status(p).message, "all");
      CHECK(outcomes.thread(p) == std::this_thread::get_id());
    }
  }
}

// A device that cannot take part comes, whenever that is, and says why: all are told, when all have come.
TEST(Refusals) {
  for (int32_t first = 0; first < 3; ++first) {
    for (const bool second : {false, true}) {
      const auto site = MakeSite(2, 3);
      std::atomic<int64_t> met{0};
      int32_t failed = 0;
      std::string why;
      const auto session = Create(
          site,
          [&](TestSession* session, int32_t last) {
            ++met;
            session->Finish(Status::Ok(), last);
          },
          kAllProcesses,
          [&](const TestSession&, const Status& status) {
            ++failed;
            why = status.message;
            throw std::bad_alloc();  // nobody waits in vain for that
          });
      const Outcomes outcomes(3);
      for (int32_t p = 0; p < 3; ++p) {
        for (int32_t i = 0; i < p; ++i) CHECK(!outcomes.called(i));
        if (p == first || (second && p > first)) {
          session->FailGroup(1, site->partition(1, p), Status::Unavailable("no room " + std::to_string(p)),
                             outcomes.For(p));
        } else {
          Arrive(session, {1, 0, 1, p}, outcomes.For(p));
        }
      }
      outcomes.WaitAll();
      const std::string text = "exchange over axis 'x' (channel 7): device " + std::to_string(first) +
                               " of group 1 cannot take part: no room " + std::to_string(first);
      for (int32_t p = 0; p < 3; ++p) {
        CHECK(outcomes.status(p).code == Code::kUnavailable);
        CHECK_EQ(outcomes.status(p).message, text);
      }
      CHECK_EQ(why, text);
      CHECK_EQ(failed, 1);
      CHECK_EQ(met.load(), 0);
      Meet(session, 2, 1, 3);  // the next launch
      CHECK_EQ(met.load(), 1);
    }
  }
}

// Of one that cannot take part those are told too who waited in vain for others, and those who come late.
TEST(ExpiryAfterARefusal) {
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(MakeSite(1, 3), &met);
  const Outcomes outcomes(2);
  session->FailGroup(1, 2, Status::Internal("no room."), outcomes.For(0));
  Arrive(session, {1, 0, 0, 0}, outcomes.For(1));
  CHECK(!session->Expire(steady_clock::now() + 2 * milliseconds(kNoTimeoutMs)));
  outcomes.WaitAll();
  const std::string text = "exchange over axis 'x' (channel 7): device 2 cannot take part: no room. Besides: " +
                           Timeout("3600.0", "1", "0, 2");
  for (int32_t i = 0; i < 2; ++i) {
    CHECK(outcomes.status(i).code == Code::kInternal);
    CHECK_EQ(outcomes.status(i).message, text);
  }
  CHECK_EQ(ArriveLate(session, {1, 0, 0, 1}).message, text);
  CHECK_EQ(met.load(), 0);
}

// Time-outs that nobody came late for are not kept for ever.
TEST(OldFailuresAreForgotten) {
  std::atomic<int64_t> met{0};
  const auto session = MakeRendezvous(MakeSite(1, 2), &met);
  constexpr int64_t kMany = 200;
  const Outcomes outcomes(kMany);
  for (int64_t run = 0; run < kMany; ++run) {
    Arrive(session, {run, 0, 0, 0}, outcomes.For(static_cast<int32_t>(run)));
    session->Expire(steady_clock::now() + 2 * milliseconds(kNoTimeoutMs));
  }
  outcomes.WaitAll();
  CHECK(ArriveLate(session, {kMany - 1, 0, 0, 1}).code == Code::kDeadlineExceeded);
  const Outcomes forgotten(2);
  Arrive(session, {0, 0, 0, 1}, forgotten.For(1));
  CHECK(!forgotten.called(1));
  Arrive(session, {0, 0, 0, 0}, forgotten.For(0));
  forgotten.WaitAll();
  CHECK(forgotten.all_ok());
}

// By the watchdog's clock, which nothing but this may depend on.
TEST(Watchdog) {
  std::atomic<int64_t> met{0};
  const auto site = MakeSite(1, 3, 150);
  const auto session = MakeRendezvous(site, &met);
  for (int64_t run = 0; run < 3; ++run) {
    const auto before = steady_clock::now();
    const Outcomes outcome(1);
    Arrive(session, {run, 0, 0, 1}, outcome.For(0));
    outcome.WaitAll();
    CHECK(steady_clock::now() - before >= milliseconds(150));
    const std::string message = Timeout("0.1", "0, 2", "1");
    IsTimeout(outcome.status(0), message);
    CHECK(outcome.thread(0) != std::this_thread::get_id());
    IsTimeout(ArriveLate(session, {run, 0, 0, 0}), message);
    IsTimeout(ArriveLate(session, {run, 0, 0, 2}), message);
    // Long enough, in one of the rounds, for the watchdog to have gone to sleep.
    if (run == 1) std::this_thread::sleep_for(milliseconds(2300));
  }
  CHECK_EQ(met.load(), 0);
}

// A program may be thrown away while devices wait: they are still told, and then nothing is left.
TEST(DroppedWhileWaiting) {
  auto held = std::make_shared<int>(0);
  const auto site = MakeSite(1, 2);
  auto session = Create(site, [held](TestSession* session, int32_t) { session->Finish(Status::Ok()); });
  const std::weak_ptr<TestRendezvous> left = session;
  const Outcomes outcome(1);
  Arrive(session, {1, 0, 0, 0}, outcome.For(0));
  session.reset();
  CHECK(!left.expired());
  CHECK(!left.lock()->Expire(steady_clock::now() + 2 * milliseconds(kNoTimeoutMs)));
  outcome.WaitAll();
  IsTimeout(outcome.status(0), Timeout("3600.0", "1", "0"));
  while (!left.expired() || held.use_count() > 1) std::this_thread::yield();
}

// Tasks that all wait for each other, started from one another as well.
TEST(Completer) {
  for (int32_t round = 0; round < 10; ++round) {
    constexpr int32_t kTasks = 40;
    Barrier all(kTasks);
    const Outcomes outcomes(kTasks);
    for (int32_t i = 0; i < kTasks / 2; ++i) {
      Completer::Get().Run([&, i] {
        Completer::Get().Run([&all, i, done = outcomes.For(2 * i + 1)] {
          all.Wait();
          done(Status::Ok());
        });
        all.Wait();
        outcomes.For(2 * i)(Status::Ok());
      });
    }
    outcomes.WaitAll();
    std::set<std::thread::id> threads;
    for (int32_t i = 0; i < kTasks; ++i) threads.insert(outcomes.thread(i));
    CHECK_EQ(threads.size(), static_cast<size_t>(kTasks));
  }
}

// What a task holds is let go without a lock: its destructor may have more to run.
TEST(TasksAreDestroyedFreely) {
  const Outcomes outcomes(20);
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    const auto run_another = [done = outcomes.For(i)](void*) { Completer::Get().Run([done] { done(Status::Ok()); }); };
    Completer::Get().Run([held = std::shared_ptr<void>(nullptr, run_another)] {});
  }
  outcomes.WaitAll();
  CHECK(outcomes.all_ok());
}

// What is said of counts that are the same on all of two devices but the last.
std::string Counted(int64_t experts, const std::vector<int64_t>& last) {
  const auto site = MakeSite(1, 2);
  site->experts = experts;
  const std::vector<int64_t> fine(last.size(), 1);
  const auto view = [](const std::vector<int64_t>& sizes) {
    return CountsArgs{{sizes.data(), static_cast<int64_t>(sizes.size()), IntKind::kS64}};
  };
  const auto plan = [](const int64_t*, const TakePlan&, bool*) { return Status::Ok(); };
  Launch launch;
  const Status status = CountsWork().GatherAndPlan(*site, 0, {view(fine), view(last)}, {}, plan, &launch);
  CHECK(status.code == (status.message.empty() ? Code::kOk : Code::kInvalidArgument));
  return status.message;
}

TEST(RefusedCounts) {
  CHECK_EQ(Counted(0, {1, 1, -3, 1}),
           "exchange over axis 'x' (channel 7): on device 1, send_sizes[2] = -3; a size must be 0 or more.");
  // Blocks that no table can hold: a planner could not even add them up.
  constexpr int64_t kLimit = INT32_MAX;
  CHECK_EQ(Counted(0, {0, kLimit, 1, kLimit - 1}), "");
  const auto refused = [](const std::string& peer, const std::vector<int64_t>& sizes) {
    CHECK_EQ(Counted(0, sizes), "exchange over axis 'x' (channel 7): device 1 sends 2^31 rows or more to device " +
                                    peer + "; split the exchange.");
  };
  refused("1", {1, 1, INT64_MAX, INT64_MAX});
  refused("0", {INT64_MAX, 0, 1, 1});
  refused("0", {0, kLimit + 1, 1, 1});
  refused("0", {1, kLimit, 1, 1});
  CHECK_EQ(Counted(0, {}), "");
}

// Send sizes of an MoE layer that name an expert there is not.
TEST(RefusedExperts) {
  constexpr int64_t negative = int64_t{1} << 30;
  for (const auto& [size, expert] : {std::pair<int64_t, const char*>{-8, "8"},
                                     {-negative - 8, "-8"},
                                     {-negative + 2, "1073741822"},
                                     {-negative + 1, "1073741823 or more"},
                                     {-2 * negative + 1, "-1073741823 or less"}}) {
    CHECK_EQ(Counted(8, {1, size}), std::string("exchange over axis 'x' (channel 7): on device 1, moe.dispatch was "
                                                "given the expert ") +
                                        expert + " in expert_ids; want 0 to 7, or -1 for choices that go nowhere.");
  }
}

}  // namespace
}  // namespace fastjax::test
