// ProcessRendezvous where a process does not come, comes too late or gives up: every process is told, and why.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/status.h"
#include "process_rendezvous_rig.h"
#include "rendezvous/process_metadata.h"
#include "rendezvous/process_rendezvous.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace std::chrono_literals;

// The one that is elsewhere has waited a little longer, and gives up first.
TEST(TimeoutOfBoth) {
  Job job(2);
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1, AtAnotherCall());
  job.Join({&a, &b});
  const auto now = std::chrono::steady_clock::now();
  job.rendezvous[1]->OnTick(now + 2000s);
  CHECK_EQ(b.failed, 1);
  job.DeliverAll();
  job.rendezvous[0]->OnTick(now + 2000s);
  CHECK_EQ(a.failed, 1);
  CHECK_CONTAINS(a.status.message,
                 "for process 1 (test) (which was at another call, and gave that up: exchange over axis 'z')");
}

// Programs of one name: whether they plan otherwise, or are lowered otherwise.
TEST(TimeoutAtProgramsOfOneName) {
  for (const bool gave_up : {false, true}) {
    for (const bool plans : {false, true}) {
      Job job(2);
      ProcessSession here = At(In(1));
      here.text += std::string(kInModule) + "aaaa";
      ProcessSession there = At(In(1), 4);
      there.text += std::string(kInModule) + "bbbb";
      if (plans) there.settings = 5;
      TestParticipant a(&job, 0, std::move(here));
      TestParticipant b(&job, 1, std::move(there));
      job.Join({&a, &b});
      const auto late = std::chrono::steady_clock::now() + 2000s;
      if (gave_up) job.rendezvous[1]->OnTick(late);
      job.DeliverAll();
      job.rendezvous[0]->OnTick(late);
      CHECK_EQ(a.failed, 1);
      CHECK_EQ(Contains(a.status.message, "plans with another topology"), plans);
      CHECK_EQ(Contains(a.status.message, "another program of that name"), !plans);
      CHECK_EQ(Contains(a.status.message, "in module bbbb"), !plans);
    }
  }
}

TEST(Timeout) {
  Job job(3);
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1);
  TestParticipant c(&job, 2, AtAnotherCall());
  job.Join({&a, &b, &c});
  const auto now = std::chrono::steady_clock::now();
  job.rendezvous[0]->OnTick(now + 100s);
  CHECK_EQ(a.failed, 0);
  job.rendezvous[0]->OnTick(now + 2000s);
  CHECK(a.failed == 1 && a.status.code == Code::kDeadlineExceeded);
  CHECK_CONTAINS(a.status.message,
                 "waited 1500.0 s for process 2 (test) (which is at another call: exchange over axis 'z')");
  CHECK(!Contains(a.status.message, "process 1"));
  job.DeliverAll();
  CHECK(b.failed == 1 && b.status.code == Code::kUnavailable);
  CHECK_CONTAINS(b.status.message, "process 0 (test) gave up: exchange: waited 1500.0 s");
  // One that is at the same call, in another launch, or elsewhere in that launch.
  for (const auto& [launch, where] : {std::pair(In(2), "1 launch behind"), std::pair(In(5), "2 launches further"),
                                      std::pair(In(3, 0, 2), "2 repetitions in a loop further")}) {
    Job pair(2);
    TestParticipant next(&pair, 1, At(launch));
    TestParticipant other(&pair, 0, At(In(3)));
    pair.Join({&next, &other});
    pair.rendezvous[0]->OnTick(now + 10000s);
    CHECK_CONTAINS(other.status.message, "process 1 (test) (which is " + std::string(where) + ")");
  }
  // Who comes late is told at once.
  TestParticipant late(&job, 2);
  late.Join();
  CHECK(late.failed == 1 && Contains(late.status.message, "gave up"));
  // And of one who is nowhere, nothing more is known.
  Job empty(2);
  TestParticipant alone(&empty, 0, At(In(9)));
  alone.Join();
  empty.rendezvous[0]->OnTick(now + 10000s);
  CHECK_CONTAINS(alone.status.message, "waited 1500.0 s for process 1 (test), which did not reach this call");
  CHECK_CONTAINS(alone.status.message, "FASTJAX_TIMEOUT");
}

constexpr LaunchId kCounted = {10, 1, 0, 0};

// Launches of one call of which nothing says whether they are one: whoever comes last, both learn it at once, and so
// does who comes when the other has given up.
TEST(Incomparable) {
  for (const bool early : {false, true}) {
    Job job(2);
    TestParticipant a(&job, 0, At(In(5)));
    TestParticipant b(&job, 1, At(kCounted));
    a.Join();
    if (early) job.DeliverAll();
    job.Join({&b});
    for (const TestParticipant* participant : {&a, &b}) {
      CHECK(participant->met == 0 && participant->failed == 1);
      CHECK_CONTAINS(participant->status.message, "cannot be told to be the same");
      CHECK_CONTAINS(participant->status.message, "launch 10, as all processes count them");
      CHECK_CONTAINS(participant->status.message, "launch 5 of an executable that JAX did not compile");
    }
    TestParticipant late(&job, 1, At(kCounted));
    TestParticipant next(&job, 1, At({11, 1, 0, 0}));
    for (TestParticipant* const participant : {&late, &next}) {
      participant->Join();
      CHECK(participant->failed == 1 && Contains(participant->status.message, "cannot be told to be the same"));
    }
    job.DeliverAll();
    // Those of other copies, groups and calls have nothing to do with it.
    TestParticipant c(&job, 0, At(In(5, 1)));
    TestParticipant d(&job, 1, At(In(5, 1)));
    job.Join({&c, &d});
    CHECK(c.met == 1 && d.met == 1);
  }
}

// Several that are under way at once are all told, since any of them may be it.
TEST(IncomparableBesideEachOther) {
  Job job(2);
  std::vector<std::unique_ptr<TestParticipant>> under_way;
  for (const uint32_t number : {5, 6, 7}) {
    under_way.push_back(std::make_unique<TestParticipant>(&job, 0, At(In(number))));
    under_way.back()->Join();
  }
  job.DeliverAll();
  TestParticipant b(&job, 1, At(kCounted));
  job.Join({&b});
  CHECK(b.failed == 1);
  for (const auto& participant : under_way) CHECK(participant->met == 0 && participant->failed == 1);
}

// The same where messages are lost with a connection: whoever hears of the other next says so once more.
TEST(IncomparableAgain) {
  for (const bool gives_up : {false, true}) {
    Job job(2);
    TestParticipant a(&job, 0, At(In(5)));
    TestParticipant b(&job, 1, At(kCounted));
    job.Join({&a});
    b.Join();
    CHECK(b.failed == 1 && a.failed == 0);
    job.queue.sent.clear();
    if (gives_up) {
      job.rendezvous[1]->TellAll(b.session(), Status::Deadline("waited for device 3"));
    } else {
      job.rendezvous[0]->OnRenewed(1, Status::Ok());
    }
    job.DeliverAll();
    CHECK(a.met == 0 && a.failed == 1 && Contains(a.status.message, "gave up"));
  }
}

// The time-out counts from when the process that is missing could have come: not while it is at an earlier launch.
TEST(Late) {
  Job job(3);
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1);
  TestParticipant c(&job, 2);
  TestParticipant next(&job, 0, At(In(2)));
  TestParticipant other(&job, 2, At(In(2)));
  job.Join({&a, &next, &c, &other});
  auto now = std::chrono::steady_clock::now();
  job.Join({&b});
  CHECK(a.met == 1 && c.met == 1);
  // As long as the earlier launch goes on.
  for (int tick = 0; tick < 4; ++tick) job.rendezvous[0]->OnTick(now += 1000s);
  CHECK(next.failed == 0 && a.ticks == 4);
  a.Leave();
  // And then from its end, which the clock of the test does not know.
  job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 1400s);
  CHECK_EQ(next.failed, 0);
  job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 1600s);
  CHECK(next.failed == 1 && Contains(next.status.message, "waited 1500.0 s for process 1"));
  // A later launch keeps nobody, nor one that the missing process has not come to either.
  Job skipped(2);
  TestParticipant d(&skipped, 0);
  TestParticipant e(&skipped, 0, At(In(2)));
  TestParticipant f(&skipped, 1, At(In(2)));
  TestParticipant g(&skipped, 0, At(In(3)));
  skipped.Join({&d, &e, &f, &g});
  CHECK(e.met == 1 && f.met == 1);
  skipped.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
  CHECK(d.failed == 1 && g.failed == 0);
}

// Those who do not come are asked, once, when half of the time is up. Who does not answer needs another connection,
// whoever gives up first.
TEST(Silence) {
  for (const bool answers : {true, false}) {
    Job job(4);
    TestParticipant a(&job, 0);
    TestParticipant b(&job, 1);
    TestParticipant d(&job, 3, AtAnotherCall());
    job.Join({&a, &b, &d});
    const auto now = std::chrono::steady_clock::now();
    for (const auto after : {300s, 1000s, 1200s}) {
      for (const int32_t process : {0, 1}) job.rendezvous[process]->OnTick(now + after);
      if (after == 300s) CHECK(job.transports[0]->probed.empty());
    }
    for (const int32_t process : {0, 1}) {
      CHECK((job.transports[process]->probed == std::vector<int32_t>{2, 3}));
      if (!answers) job.transports[process]->silent = {2};
    }
    CHECK_EQ(a.failed + b.failed, 0);
    job.rendezvous[0]->OnTick(now + 2000s);
    job.DeliverAll();
    CHECK(a.failed == 1 && b.failed == 1);
    const std::vector<int32_t> left = answers ? std::vector<int32_t>{} : std::vector<int32_t>{2};
    CHECK(job.transports[0]->disconnected == left && job.transports[1]->disconnected == left);
  }
}

// However many rendezvous were given up, and whoever was early to them.
TEST(ManyGivenUp) {
  Job job(3);
  for (uint32_t run = 0; run < 300; ++run) {
    TestParticipant a(&job, 0, At(In(run)));
    TestParticipant early(&job, 2, At(In(run)));
    job.Join({&early, &a});
    job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
    job.DeliverAll();
    CHECK(a.failed == 1 && early.failed == 1);
  }
  for (uint32_t run = 0; run < 300; ++run) {
    TestParticipant late(&job, 1, At(In(run)));
    late.Join();
    CHECK(late.met == 0 && late.failed == 1 && Contains(late.status.message, "gave up"));
  }
  CHECK(job.queue.sent.empty());
}

// A process none of whose devices come: those that wait for it hear of it, before or after, and nobody else.
TEST(AProcessNoneOfWhoseDevicesCome) {
  Job job(4);
  TestParticipant before(&job, 0);
  TestParticipant absent(&job, 1);
  TestParticipant after(&job, 2);
  job.Join({&before});
  job.rendezvous[1]->TellComers(absent.session(), Status::Invalid("a size must be 0 or more"));
  CHECK_EQ(job.queue.sent.size(), 1U);
  job.DeliverAll();
  job.Join({&after});
  for (const TestParticipant* waits : {&before, &after}) {
    CHECK(waits->failed == 1 && Contains(waits->status.message, "process 1 (test) gave up: a size must be 0 or more"));
  }
  // The next launch meets.
  std::vector<std::unique_ptr<TestParticipant>> next;
  for (int32_t p = 0; p < 4; ++p)
    next.push_back(std::make_unique<TestParticipant>(&job, p, At(In(2)), std::vector<int64_t>{1}));
  for (const auto& participant : next) participant->Join();
  job.DeliverAll();
  for (const auto& participant : next) CHECK(participant->met == 1 && participant->failed == 0);
}

// The state of a connection is told of a process that is waited for, and not where that process's reason is.
TEST(Trouble) {
  for (const bool told : {false, true}) {
    Job job(2);
    job.transports[0]->troubled = 1;
    TestParticipant a(&job, 0);
    TestParticipant b(&job, 1);
    a.Join();
    if (told) job.rendezvous[1]->TellAll(b.session(), Status::Deadline("waited for device 3"));
    job.DeliverAll();
    job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
    CHECK_EQ(a.failed, 1);
    CHECK_CONTAINS(a.status.message, told ? "process 1 (test) gave up: waited for device 3"
                                          : "for process 1 (test) (the link is down), which did not reach this call");
  }
}

// A message to a session that was given up is answered, however late it arrives.
TEST(LateMessage) {
  Job job(2);
  TestParticipant a(&job, 0);
  a.Join();
  job.queue.sent.clear();  // lost in flight, as if the other were not connected yet
  job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
  job.queue.sent.clear();
  TestParticipant b(&job, 1);
  job.Join({&b});
  CHECK(b.failed == 1 && Contains(b.status.message, "gave up"));
}

TEST(Lost) {
  Job job(3);
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1);
  TestParticipant c(&job, 2);
  job.Join({&a, &b, &c});
  CHECK(a.met == 1 && b.met == 1);
  job.rendezvous[0]->OnLost(2, Status::Unavailable("process 2 (test) is gone"));
  CHECK(a.failed == 1 && a.status.code == Code::kUnavailable);
  CHECK_CONTAINS(a.status.message, "exchange: process 2 (test) is gone");
  for (const auto& sent : job.queue.sent) CHECK(sent.to != 2);  // nothing is said to the lost
  job.DeliverAll();
  CHECK(b.failed == 1 && Contains(b.status.message, "process 2 (test) is gone"));
}

// Whoever has not joined may take five times as long, and the time-out runs once it has.
TEST(Newcomers) {
  Job job(2);
  job.transports[0]->newcomer = 1;
  TestParticipant a(&job, 0);
  a.Join();
  const auto begun = std::chrono::steady_clock::now();
  for (const auto at : {1600s, 3000s, 4400s}) job.rendezvous[0]->OnTick(begun + at);
  CHECK_EQ(a.failed, 0);
  job.transports[0]->newcomer = -1;
  job.rendezvous[0]->OnTick(begun + 5800s);
  CHECK_EQ(a.failed, 0);
  job.rendezvous[0]->OnTick(begun + 6000s);
  CHECK(a.failed == 1 && Contains(a.status.message, "waited 5900.0 s for process 1"));
  Job empty(2);
  empty.transports[0]->newcomer = 1;
  TestParticipant alone(&empty, 0);
  alone.Join();
  const auto opened = std::chrono::steady_clock::now();
  for (const auto at : {1400s, 2800s, 4200s, 5600s, 7000s}) empty.rendezvous[0]->OnTick(opened + at);
  CHECK_EQ(alone.failed, 0);
  empty.rendezvous[0]->OnTick(opened + 7600s);
  CHECK(alone.failed == 1 && Contains(alone.status.message, "s for process 1"));
}

}  // namespace
}  // namespace fastjax::test
