// ProcessRendezvous: which processes met, and what is done about mistakes; process_give_up_test.cc has those that do
// not come, and give up.
#include "rendezvous/process_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "process_rendezvous_rig.h"
#include "support/allocations.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace std::chrono_literals;

TEST(Meet) {
  Job job(3);
  TestParticipant a(&job, 0, At(In(1)), {10});
  TestParticipant b(&job, 1, At(In(1)), {11});
  TestParticipant c(&job, 2, At(In(1)), {12});
  a.Join();
  job.DeliverAll();  // the others are not there yet
  job.Join({&b});
  CHECK_EQ(a.met + b.met + c.met, 0);
  c.Join();
  CHECK_EQ(c.met, 1);  // had early messages of both
  job.DeliverAll();
  CHECK(a.met == 1 && b.met == 1 && c.met == 1);
  CHECK((a.heard == std::vector<int64_t>{11, 12} && b.heard == std::vector<int64_t>{10, 12}));
  const auto later = std::chrono::steady_clock::now() + 1h;
  job.rendezvous[0]->OnTick(later);
  CHECK(a.ticks == 1 && a.failed == 0);
  CHECK_EQ(a.failed + b.failed + c.failed, 0);
}

// Messages take the memory of those of earlier launches.
TEST(NoAllocations) {
  Job job(2);
  for (const bool warm : {false, true}) {
    TestParticipant a(&job, 0, At(In(warm ? 1 : 0)));
    TestParticipant b(&job, 1, At(In(warm ? 1 : 0)));
    for (TestParticipant* participant : {&a, &b}) {
      participant->heard.reserve(1);
      participant->Join();
    }
    for (const MessageQueue::Sent& sent : std::exchange(job.queue.sent, {})) {
      const long before = Allocations();
      job.rendezvous[sent.to]->OnMessage(sent.from, sent.bytes.data(), sent.bytes.size());
      CHECK_EQ(Allocations() == before, warm);
    }
    CHECK_EQ(a.met + b.met, 2);
  }
}

// Runs, repetitions and copies in any order never mix.
TEST(Order) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    Job job(2);
    std::vector<std::unique_ptr<TestParticipant>> all;
    std::vector<TestParticipant*> order[2];
    for (int32_t process = 0; process < 2; ++process) {
      for (uint32_t run = 0; run < 3; ++run) {
        for (int32_t copy = 0; copy < 2; ++copy) {
          for (int32_t repetition = 0; repetition < 2; ++repetition) {
            all.push_back(
                std::make_unique<TestParticipant>(&job, process, At(In(run, copy, repetition)),
                                                  std::vector<int64_t>{int64_t{run} * 100 + copy * 10 + repetition}));
            order[process].push_back(all.back().get());
          }
        }
      }
      std::shuffle(order[process].begin(), order[process].end(), random);
    }
    for (size_t i = 0; i < order[0].size(); ++i) {
      order[0][i]->Join();
      if (random() % 2 == 0) job.DeliverAll();
      order[1][i]->Join();
      if (random() % 2 == 0 && !job.queue.sent.empty()) job.DeliverNext();
    }
    job.DeliverAll();
    for (const auto& participant : all) {
      CHECK_EQ(participant->met, 1);
      CHECK(participant->heard == participant->session().words);
    }
  }
}

TEST(DifferentPrograms) {
  Job job(2);
  ProcessSession other = At(In(1));
  other.text = "exchange over axis 'y'";
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1, std::move(other));
  job.Join({&a, &b});
  for (const TestParticipant* participant : {&a, &b}) {
    CHECK(participant->met == 0 && participant->failed == 1);
    CHECK(Contains(participant->status.message, "axis 'x'") && Contains(participant->status.message, "axis 'y'"));
  }
  // The next one works.
  TestParticipant c(&job, 0, At(In(2)));
  TestParticipant d(&job, 1, At(In(2)));
  job.Join({&c, &d});
  CHECK(c.met == 1 && d.met == 1);
}

TEST(DifferentSettings) {
  Job job(2);
  ProcessSession other = At(In(1));
  other.settings = 5;
  TestParticipant a(&job, 0);
  TestParticipant b(&job, 1, std::move(other));
  job.Join({&a});
  b.Join();
  CHECK(b.failed == 1 && b.status.code == Code::kInvalidArgument);
  CHECK_CONTAINS(b.status.message, "process 0 (test) plans with another topology, scheduler or row size");
  job.DeliverAll();
  CHECK(a.failed == 1 && Contains(a.status.message, "another topology, scheduler or row size"));
}

// Messages that are lost with a connection are sent again, whichever of them were.
TEST(Renewed) {
  for (const bool first_lost : {false, true}) {
    for (const bool second_lost : {false, true}) {
      Job job(2);
      TestParticipant a(&job, 0);
      TestParticipant b(&job, 1, At(In(1)), {2});
      a.Join();
      b.Join();
      const std::deque<MessageQueue::Sent> sent = std::exchange(job.queue.sent, {});
      for (const MessageQueue::Sent& message : sent) {
        if (!(message.from == 0 ? first_lost : second_lost)) job.queue.sent.push_back(message);
      }
      job.DeliverAll();
      job.rendezvous[0]->OnRenewed(1, Status::Ok());
      job.rendezvous[1]->OnRenewed(0, Status::Ok());
      job.DeliverAll();
      CHECK(a.met == 1 && b.met == 1 && a.failed + b.failed == 0);
      CHECK(a.heard == std::vector<int64_t>{2} && b.heard == std::vector<int64_t>{1});
    }
  }
  // The message, and the same again, before anybody is here.
  Job job(2);
  TestParticipant a(&job, 0);
  a.Join();
  job.rendezvous[0]->OnRenewed(1, Status::Unavailable("gave up the connection"));
  CHECK_EQ(job.queue.sent.size(), 2u);
  job.DeliverAll();
  TestParticipant b(&job, 1, At(In(1)), {2});
  job.Join({&b});
  CHECK(a.met == 1 && b.met == 1);
  b.Leave();
  // Nothing of it is left to be taken for another.
  TestParticipant c(&job, 1, At(In(2)), {2});
  c.Join();
  job.rendezvous[1]->OnTick(std::chrono::steady_clock::now() + 1h);
  CHECK(c.failed == 1 && !Contains(c.status.message, "which is at another"));
  // An answer that was not needed, since the message had been in flight, is no second message.
  Job late(2);
  TestParticipant d(&late, 0);
  TestParticipant e(&late, 1, At(In(1)), {2});
  d.Join();
  e.Join();
  late.rendezvous[0]->OnRenewed(1, Status::Ok());
  late.DeliverAll();
  CHECK(d.met == 1 && e.met == 1 && d.failed + e.failed == 0);
  // Rows that the other side gave up may be those of a session that had begun.
  late.rendezvous[0]->OnRenewed(1, Status::Unavailable("process 1 (test) gave up the connection"));
  CHECK(d.failed == 1 && Contains(d.status.message, "exchange: process 1 (test) gave up the connection"));
}

TEST(Mistakes) {
  Job job(2);
  TestParticipant a(&job, 0);
  a.Join();
  const std::byte nonsense[24] = {};
  job.rendezvous[0]->OnMessage(1, nonsense, sizeof(nonsense));
  CHECK(a.failed == 1 && Contains(a.status.message, "none of fastjax's"));
  // The same message twice.
  Job again(3);
  TestParticipant b(&again, 0);
  TestParticipant c(&again, 1);
  b.Join();
  c.Join();
  const auto copy = again.queue.sent;
  again.DeliverAll();
  for (const auto& sent : copy) {
    if (sent.to == 0) again.rendezvous[0]->OnMessage(sent.from, sent.bytes.data(), sent.bytes.size());
  }
  CHECK(b.failed == 1 && Contains(b.status.message, "came twice"));
  // A mistake that everybody finds is told to nobody.
  Job alike(2);
  TestParticipant d(&alike, 0);
  d.Join();
  alike.queue.sent.clear();
  alike.rendezvous[0]->FailHere(&d.session(), Status::Invalid("sizes"));
  CHECK(d.failed == 1 && alike.queue.sent.empty());
}

}  // namespace
}  // namespace fastjax::test
