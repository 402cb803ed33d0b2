// ProcessRendezvous: which processes met, what is done about mistakes, and that every process is told of a failure.
#include "rendezvous/process_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/process_metadata.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace std::chrono_literals;

// Messages wait until the test delivers them.
struct MessageQueue {
  struct Sent {
    int32_t from;
    int32_t to;
    std::vector<std::byte> bytes;
  };
  std::deque<Sent> sent;
};

class QueueWire final : public Wire {
 public:
  QueueWire(MessageQueue* queue, int32_t process, int32_t processes)
      : queue_(queue), process_(process), processes_(processes) {}

  int32_t process() const override { return process_; }
  int32_t processes() const override { return processes_; }
  void SetHandler(Handler* handler) override { handler_ = handler; }
  bool Post(std::function<void()> task) override {
    task();
    return true;
  }
  uint64_t KeyedHash(const void*, size_t) const override { return 0; }
  std::string Describe(int32_t process) const override { return "process " + std::to_string(process) + " (test)"; }
  std::string Trouble(int32_t process) const override { return process == troubled ? "the link is down" : ""; }
  void SendMessage(int32_t process, const void* data, size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(data);
    queue_->sent.push_back({process_, process, {first, first + bytes}});
  }
  void Send(const Route&, uint64_t, const Piece*, int32_t, Listener*, int64_t) override {}
  void Receive(const Route&, uint64_t, const Piece*, int32_t, Listener*, int64_t) override {}
  void Cancel(Listener*) override {}
  void Disconnect(int32_t process) override { disconnected.push_back(process); }
  void Probe(int32_t process) override { probed.push_back(process); }
  bool Silent(int32_t process) const override { return silent.count(process) != 0; }
  void Drop(uint64_t, uint64_t) override {}

  Handler* handler_ = nullptr;
  std::set<int32_t> silent;
  int32_t troubled = -1;
  std::vector<int32_t> probed, disconnected;

 private:
  MessageQueue* queue_;
  int32_t process_;
  int32_t processes_;
};

// ProcessRendezvous of every process of a job.
struct Job {
  explicit Job(int32_t processes) {
    for (int32_t p = 0; p < processes; ++p) {
      wires.push_back(std::make_unique<QueueWire>(&queue, p, processes));
      rendezvous.push_back(std::make_unique<ProcessRendezvous>(wires.back().get()));
    }
  }
  // Until no process sends anything more.
  void DeliverAll() {
    while (!queue.sent.empty()) DeliverNext();
  }
  void DeliverNext() {
    const MessageQueue::Sent sent = std::move(queue.sent.front());
    queue.sent.pop_front();
    rendezvous[sent.to]->OnMessage(sent.from, sent.bytes.data(), sent.bytes.size());
  }

  MessageQueue queue;
  std::vector<std::unique_ptr<QueueWire>> wires;
  std::vector<std::unique_ptr<ProcessRendezvous>> rendezvous;
};

class TestParticipant final : public Participant {
 public:
  TestParticipant(Job* job, int32_t process, ProcessSession session, std::vector<int64_t> words)
      : job_(job), process_(process), process_session_(std::move(session)) {
    process_session_.participant = this;
    for (int32_t other = 0; other < static_cast<int32_t>(job->wires.size()); ++other) {
      if (other != process) process_session_.others.push_back(other);
    }
    ProcessMetadata message;
    message.key = process_session_.key;
    message.launch_id = process_session_.launch_id;
    message.settings = process_session_.settings;
    message.text = process_session_.text;
    message.words = words.data();
    message.num_words = static_cast<int64_t>(words.size());
    Encode(message, &process_session_.bytes);
  }
  ~TestParticipant() override { Leave(); }

  void Join() { job_->rendezvous[process_]->Join(&process_session_); }
  void Leave() { job_->rendezvous[process_]->Leave(&process_session_); }
  void OnMet() override {
    ++met;
    for (const auto& message : process_session_.messages) heard.push_back(message->metadata.words[0]);
  }
  void OnFailed(const Status& why) override {
    ++failed;
    status = why;
    Leave();
  }
  void OnTick(std::chrono::steady_clock::time_point) override { ++ticks; }
  ProcessSession& session() { return process_session_; }

  int met = 0;
  int failed = 0;
  int ticks = 0;
  Status status;
  std::vector<int64_t> heard;

 private:
  Job* job_;
  int32_t process_;
  ProcessSession process_session_;
};

LaunchId In(int64_t run_id, int32_t copy = 0, int32_t round = 0) {
  LaunchId launch_id;
  launch_id.run_id = run_id;
  launch_id.copy = copy;
  launch_id.round = round;
  return launch_id;
}

ProcessSession At(LaunchId launch_id, uint64_t call = 3) {
  ProcessSession session;
  session.key = {call, 0};
  session.launch_id = launch_id;
  session.text = "exchange over axis 'x'";
  session.prefix = "exchange: ";
  session.timeout = 1500s;  // by the clock in hand: none of it passes while a test runs
  return session;
}

void TestMeet() {
  Job job(3);
  TestParticipant a(&job, 0, At(In(1)), {10});
  TestParticipant b(&job, 1, At(In(1)), {11});
  TestParticipant c(&job, 2, At(In(1)), {12});
  a.Join();
  job.DeliverAll();  // the others are not there yet
  b.Join();
  job.DeliverAll();
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

// Runs, rounds and copies in any order never mix.
void TestOrder() {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    Job job(2);
    std::vector<std::unique_ptr<TestParticipant>> all;
    std::vector<TestParticipant*> order[2];
    for (int32_t process = 0; process < 2; ++process) {
      for (int64_t run = 0; run < 3; ++run) {
        for (int32_t copy = 0; copy < 2; ++copy) {
          for (int32_t round = 0; round < 2; ++round) {
            all.push_back(std::make_unique<TestParticipant>(
                &job, process, At(In(run, copy, round)), std::vector<int64_t>{run * 100 + int64_t{copy} * 10 + round}));
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
      const ProcessSession& session = participant->session();
      CHECK_EQ(participant->met, 1);
      CHECK(participant->heard == std::vector<int64_t>{session.launch_id.run_id * 100 +
                                                       int64_t{session.launch_id.copy} * 10 + session.launch_id.round});
    }
  }
}

void TestDifferentPrograms() {
  Job job(2);
  ProcessSession other = At(In(1));
  other.text = "exchange over axis 'y'";
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, std::move(other), {1});
  a.Join();
  b.Join();
  job.DeliverAll();
  for (const TestParticipant* participant : {&a, &b}) {
    CHECK(participant->met == 0 && participant->failed == 1);
    CHECK(Contains(participant->status.message, "axis 'x'") && Contains(participant->status.message, "axis 'y'"));
  }
  // The next one works.
  TestParticipant c(&job, 0, At(In(2)), {1});
  TestParticipant d(&job, 1, At(In(2)), {1});
  c.Join();
  d.Join();
  job.DeliverAll();
  CHECK(c.met == 1 && d.met == 1);
}

void TestDifferentSettings() {
  Job job(2);
  ProcessSession other = At(In(1));
  other.settings = 5;
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, std::move(other), {1});
  a.Join();
  job.DeliverAll();
  b.Join();
  CHECK(b.failed == 1 && b.status.code == Code::kInvalidArgument);
  CHECK_CONTAINS(b.status.message, "process 0 (test) plans with another topology, scheduler or row size");
  job.DeliverAll();
  CHECK(a.failed == 1 && Contains(a.status.message, "another topology, scheduler or row size"));
}

ProcessSession AtAnotherCall() {
  ProcessSession elsewhere = At(In(1));
  elsewhere.key.call = 4;
  elsewhere.text = "exchange over axis 'z'";
  return elsewhere;
}

// The one that is elsewhere has waited a little longer, and gives up first.
void TestTimeoutOfBoth() {
  Job job(2);
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, AtAnotherCall(), {1});
  a.Join();
  b.Join();
  job.DeliverAll();
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
void TestTimeoutAtProgramsOfOneName() {
  for (const bool gave_up : {false, true}) {
    for (const bool plans : {false, true}) {
      Job job(2);
      ProcessSession here = At(In(1));
      here.text += std::string(kInModule) + "aaaa";
      ProcessSession there = At(In(1), 4);
      there.text += std::string(kInModule) + "bbbb";
      if (plans) there.settings = 5;
      TestParticipant a(&job, 0, std::move(here), {1});
      TestParticipant b(&job, 1, std::move(there), {1});
      a.Join();
      b.Join();
      job.DeliverAll();
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

void TestTimeout() {
  Job job(3);
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, At(In(1)), {1});
  TestParticipant c(&job, 2, AtAnotherCall(), {1});
  a.Join();
  b.Join();
  c.Join();
  job.DeliverAll();
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
  // One that is at the same call, in another launch.
  TestParticipant next(&job, 1, At(In(2)), {1});
  TestParticipant other(&job, 0, At(In(3)), {1});
  next.Join();
  job.DeliverAll();
  other.Join();
  job.rendezvous[0]->OnTick(now + 10000s);
  CHECK_CONTAINS(other.status.message, "process 1 (test) (which is 1 launch behind)");
  // Who comes late is told at once.
  TestParticipant late(&job, 2, At(In(1)), {1});
  late.Join();
  CHECK(late.failed == 1 && Contains(late.status.message, "gave up"));
  // And of one who is nowhere, nothing more is known.
  Job empty(2);
  TestParticipant alone(&empty, 0, At(In(9)), {1});
  alone.Join();
  empty.rendezvous[0]->OnTick(now + 10000s);
  CHECK_CONTAINS(alone.status.message, "waited 1500.0 s for process 1 (test), which did not reach this call");
  CHECK_CONTAINS(alone.status.message, "FASTJAX_TIMEOUT");
}

// Launches of one call of which nothing says whether they are one: whoever comes last, both learn it at once, and so
// does who comes when the other has given up.
void TestUntold() {
  for (const bool early : {false, true}) {
    Job job(2);
    LaunchId from_cache = In(1'000'000'000);
    from_cache.start = 999'999'990;
    TestParticipant a(&job, 0, At(In(5)), {1});
    TestParticipant b(&job, 1, At(from_cache), {1});
    a.Join();
    if (early) job.DeliverAll();
    b.Join();
    job.DeliverAll();
    for (const TestParticipant* participant : {&a, &b}) {
      CHECK(participant->met == 0 && participant->failed == 1);
      CHECK_CONTAINS(participant->status.message, "cannot be told to be the same");
      CHECK_CONTAINS(participant->status.message, "launch 1000000000, counted from 999999990");
    }
    TestParticipant late(&job, 1, At(from_cache), {1});
    ++from_cache.run_id;
    TestParticipant next(&job, 1, At(from_cache), {1});
    for (TestParticipant* const participant : {&late, &next}) {
      participant->Join();
      CHECK(participant->failed == 1 && Contains(participant->status.message, "cannot be told to be the same"));
    }
    job.DeliverAll();
    // Those of other copies, groups and calls have nothing to do with it.
    TestParticipant c(&job, 0, At(In(5, 1)), {1});
    TestParticipant d(&job, 1, At(In(5, 1)), {1});
    c.Join();
    d.Join();
    job.DeliverAll();
    CHECK(c.met == 1 && d.met == 1);
  }
}

// The same where messages are lost with a connection: whoever hears of the other next says so once more.
void TestUntoldAgain() {
  for (const bool gives_up : {false, true}) {
    Job job(2);
    LaunchId from_cache = In(1'000'000'000);
    from_cache.start = 999'999'990;
    TestParticipant a(&job, 0, At(In(5)), {1});
    TestParticipant b(&job, 1, At(from_cache), {1});
    a.Join();
    job.DeliverAll();
    b.Join();
    CHECK(b.failed == 1 && a.failed == 0);
    job.queue.sent.clear();
    if (gives_up) {
      job.rendezvous[1]->StayAway(b.session(), Status::Deadline("waited for device 3"));
    } else {
      job.rendezvous[0]->OnRenewed(1, Status::Ok());
    }
    job.DeliverAll();
    CHECK(a.met == 0 && a.failed == 1 && Contains(a.status.message, "gave up"));
  }
}

// The time-out counts from when the process that is missing could have come: not while it is at an earlier launch.
void TestLate() {
  Job job(3);
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, At(In(1)), {1});
  TestParticipant c(&job, 2, At(In(1)), {1});
  TestParticipant next(&job, 0, At(In(2)), {1});
  TestParticipant other(&job, 2, At(In(2)), {1});
  for (TestParticipant* const participant : {&a, &next, &c, &other}) participant->Join();
  job.DeliverAll();
  auto now = std::chrono::steady_clock::now();
  b.Join();
  job.DeliverAll();
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
  TestParticipant d(&skipped, 0, At(In(1)), {1});
  TestParticipant e(&skipped, 0, At(In(2)), {1});
  TestParticipant f(&skipped, 1, At(In(2)), {1});
  TestParticipant g(&skipped, 0, At(In(3)), {1});
  for (TestParticipant* const participant : {&d, &e, &f, &g}) participant->Join();
  skipped.DeliverAll();
  CHECK(e.met == 1 && f.met == 1);
  skipped.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
  CHECK(d.failed == 1 && g.failed == 0);
}

// Those who do not come are asked, once, when half of the time is up. Who does not answer needs another connection,
// whoever gives up first.
void TestSilence() {
  for (const bool answers : {true, false}) {
    Job job(4);
    TestParticipant a(&job, 0, At(In(1)), {1});
    TestParticipant b(&job, 1, At(In(1)), {1});
    TestParticipant d(&job, 3, AtAnotherCall(), {1});
    for (TestParticipant* const participant : {&a, &b, &d}) participant->Join();
    job.DeliverAll();
    const auto now = std::chrono::steady_clock::now();
    for (const auto after : {300s, 1000s, 1200s}) {
      for (const int32_t process : {0, 1}) job.rendezvous[process]->OnTick(now + after);
      if (after == 300s) CHECK(job.wires[0]->probed.empty());
    }
    for (const int32_t process : {0, 1}) {
      CHECK((job.wires[process]->probed == std::vector<int32_t>{2, 3}));
      if (!answers) job.wires[process]->silent = {2};
    }
    CHECK_EQ(a.failed + b.failed, 0);
    job.rendezvous[0]->OnTick(now + 2000s);
    job.DeliverAll();
    CHECK(a.failed == 1 && b.failed == 1);
    const std::vector<int32_t> left = answers ? std::vector<int32_t>{} : std::vector<int32_t>{2};
    CHECK(job.wires[0]->disconnected == left && job.wires[1]->disconnected == left);
  }
}

// However many rendezvous were given up, and whoever was early to them.
void TestManyGivenUp() {
  Job job(3);
  for (int64_t run = 0; run < 300; ++run) {
    TestParticipant a(&job, 0, At(In(run)), {1});
    TestParticipant early(&job, 2, At(In(run)), {1});
    early.Join();
    a.Join();
    job.DeliverAll();
    job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
    job.DeliverAll();
    CHECK(a.failed == 1 && early.failed == 1);
  }
  for (int64_t run = 0; run < 300; ++run) {
    TestParticipant late(&job, 1, At(In(run)), {1});
    late.Join();
    CHECK(late.met == 0 && late.failed == 1 && Contains(late.status.message, "gave up"));
  }
  CHECK(job.queue.sent.empty());
}

// A process whose own devices do not all come.
void TestStayAway() {
  Job job(2);
  TestParticipant a(&job, 0, At(In(1)), {1});
  a.Join();
  TestParticipant b(&job, 1, At(In(1)), {1});
  job.rendezvous[1]->StayAway(b.session(), Status::Deadline("waited for device 3"));
  job.DeliverAll();
  CHECK(a.failed == 1 && Contains(a.status.message, "process 1 (test) gave up: waited for device 3"));
}

// A process none of whose devices come: those that wait for it hear of it, before or after, and nobody else.
void TestBeAbsent() {
  Job job(4);
  TestParticipant before(&job, 0, At(In(1)), {1});
  TestParticipant absent(&job, 1, At(In(1)), {1});
  TestParticipant after(&job, 2, At(In(1)), {1});
  before.Join();
  job.DeliverAll();
  job.rendezvous[1]->BeAbsent(absent.session(), Status::Invalid("a size must be 0 or more"));
  CHECK_EQ(job.queue.sent.size(), 1U);
  job.DeliverAll();
  after.Join();
  job.DeliverAll();
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
void TestTrouble() {
  for (const bool told : {false, true}) {
    Job job(2);
    job.wires[0]->troubled = 1;
    TestParticipant a(&job, 0, At(In(1)), {1});
    TestParticipant b(&job, 1, At(In(1)), {1});
    a.Join();
    if (told) job.rendezvous[1]->StayAway(b.session(), Status::Deadline("waited for device 3"));
    job.DeliverAll();
    job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
    CHECK_EQ(a.failed, 1);
    CHECK_CONTAINS(a.status.message, told ? "process 1 (test) gave up: waited for device 3"
                                          : "for process 1 (test) (the link is down), which did not reach this call");
  }
}

// A message to a session that was given up is answered, however late it arrives.
void TestLateMessage() {
  Job job(2);
  TestParticipant a(&job, 0, At(In(1)), {1});
  a.Join();
  job.queue.sent.clear();  // lost in flight, as if the other were not connected yet
  job.rendezvous[0]->OnTick(std::chrono::steady_clock::now() + 2000s);
  job.queue.sent.clear();
  TestParticipant b(&job, 1, At(In(1)), {1});
  b.Join();
  job.DeliverAll();
  CHECK(b.failed == 1 && Contains(b.status.message, "gave up"));
}

// Whoever hears that a launch was given up may still want to know what another process calls it: whether that process's
// message has come before, or comes after, and whether anybody here had joined.
void TestNameOfGivenUp() {
  for (const bool joined : {false, true}) {
    for (const bool before : {false, true}) {
      Job job(2);
      TestParticipant a(&job, 0, At(In(7)), {1});
      TestParticipant b(&job, 1, At(In(7)), {0});
      if (joined) b.Join();
      job.DeliverAll();
      if (before && !joined) {
        a.Join();
        job.DeliverAll();
      }
      const Status why = Status::Deadline("waited for device 3");
      if (joined) {
        job.rendezvous[1]->GiveUp(&b.session(), why);
      } else {
        job.rendezvous[1]->StayAway(b.session(), why);
      }
      int64_t known = 0;
      const auto use = [&](const LaunchId& theirs) {
        CHECK_EQ(theirs.run_id, 7);
        ++known;
      };
      job.rendezvous[1]->WhenKnown(b.session(), 0, use);
      CHECK_EQ(known, before && !joined ? 1 : 0);
      if (!before || joined) a.Join();
      job.DeliverAll();
      CHECK_EQ(known, 1);
    }
  }
}

void TestLost() {
  Job job(3);
  TestParticipant a(&job, 0, At(In(1)), {1});
  TestParticipant b(&job, 1, At(In(1)), {1});
  TestParticipant c(&job, 2, At(In(1)), {1});
  for (TestParticipant* participant : {&a, &b, &c}) participant->Join();
  job.DeliverAll();
  CHECK(a.met == 1 && b.met == 1);
  job.rendezvous[0]->OnLost(2, Status::Unavailable("process 2 (test) is gone"));
  CHECK(a.failed == 1 && a.status.code == Code::kUnavailable);
  CHECK_CONTAINS(a.status.message, "exchange: process 2 (test) is gone");
  for (const auto& sent : job.queue.sent) CHECK(sent.to != 2);  // nothing is said to the lost
  job.DeliverAll();
  CHECK(b.failed == 1 && Contains(b.status.message, "process 2 (test) is gone"));
}

// Messages that are lost with a connection are sent again, whichever of them were.
void TestRenewed() {
  for (const bool first_lost : {false, true}) {
    for (const bool second_lost : {false, true}) {
      Job job(2);
      TestParticipant a(&job, 0, At(In(1)), {1});
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
  TestParticipant a(&job, 0, At(In(1)), {1});
  a.Join();
  job.rendezvous[0]->OnRenewed(1, Status::Unavailable("gave up the connection"));
  CHECK_EQ(job.queue.sent.size(), 2u);
  job.DeliverAll();
  TestParticipant b(&job, 1, At(In(1)), {2});
  b.Join();
  job.DeliverAll();
  CHECK(a.met == 1 && b.met == 1);
  b.Leave();
  // Nothing of it is left to be taken for another.
  TestParticipant c(&job, 1, At(In(2)), {2});
  c.Join();
  job.rendezvous[1]->OnTick(std::chrono::steady_clock::now() + 1h);
  CHECK(c.failed == 1 && !Contains(c.status.message, "which is at another"));
  // An answer that was not needed, since the message had been in flight, is no second message.
  Job late(2);
  TestParticipant d(&late, 0, At(In(1)), {1});
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

void TestMistakes() {
  Job job(2);
  TestParticipant a(&job, 0, At(In(1)), {1});
  a.Join();
  const std::byte nonsense[24] = {};
  job.rendezvous[0]->OnMessage(1, nonsense, sizeof(nonsense));
  CHECK(a.failed == 1 && Contains(a.status.message, "none of fastjax's"));
  // The same message twice.
  Job again(3);
  TestParticipant b(&again, 0, At(In(1)), {1});
  TestParticipant c(&again, 1, At(In(1)), {1});
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
  TestParticipant d(&alike, 0, At(In(1)), {1});
  d.Join();
  alike.queue.sent.clear();
  alike.rendezvous[0]->FailAlike(&d.session(), Status::Invalid("sizes"));
  CHECK(d.failed == 1 && alike.queue.sent.empty());
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestMeet();
  fastjax::test::TestOrder();
  fastjax::test::TestDifferentPrograms();
  fastjax::test::TestDifferentSettings();
  fastjax::test::TestTimeout();
  fastjax::test::TestTimeoutOfBoth();
  fastjax::test::TestTimeoutAtProgramsOfOneName();
  fastjax::test::TestUntold();
  fastjax::test::TestUntoldAgain();
  fastjax::test::TestLate();
  fastjax::test::TestSilence();
  fastjax::test::TestManyGivenUp();
  fastjax::test::TestStayAway();
  fastjax::test::TestBeAbsent();
  fastjax::test::TestTrouble();
  fastjax::test::TestLateMessage();
  fastjax::test::TestNameOfGivenUp();
  fastjax::test::TestLost();
  fastjax::test::TestRenewed();
  fastjax::test::TestMistakes();
  return fastjax::test::Finish("process_rendezvous_test");
}
