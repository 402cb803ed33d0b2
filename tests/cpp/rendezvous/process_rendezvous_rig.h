// A job whose processes send messages that wait until the test delivers them.
#ifndef FASTJAX_TESTS_CPP_RENDEZVOUS_PROCESS_RENDEZVOUS_RIG_H_
#define FASTJAX_TESTS_CPP_RENDEZVOUS_PROCESS_RENDEZVOUS_RIG_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exchange/status.h"
#include "rendezvous/process_metadata.h"
#include "rendezvous/process_rendezvous.h"
#include "support/unlinked_transport.h"

namespace fastjax::test {

// Messages wait until the test delivers them.
struct MessageQueue {
  struct Sent {
    int32_t from;
    int32_t to;
    std::vector<std::byte> bytes;
  };
  std::deque<Sent> sent;
};

class QueueTransport final : public UnlinkedTransport<> {
 public:
  QueueTransport(MessageQueue* queue, int32_t process, int32_t processes)
      : UnlinkedTransport(process, processes), queue_(queue) {}

  bool Post(std::function<void()> task) override {
    task();
    return true;
  }
  std::string Describe(int32_t process) const override { return "process " + std::to_string(process) + " (test)"; }
  bool HasJoined(int32_t process) const override { return process != newcomer; }
  std::string Trouble(int32_t process) const override { return process == troubled ? "the link is down" : ""; }
  void SendMessage(int32_t process, const void* data, size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(data);
    queue_->sent.push_back({this->process(), process, {first, first + bytes}});
  }
  void Disconnect(int32_t process) override { disconnected.push_back(process); }
  void Probe(int32_t process) override { probed.push_back(process); }
  bool Silent(int32_t process) const override { return silent.count(process) != 0; }

  std::set<int32_t> silent;
  int32_t troubled = -1;
  int32_t newcomer = -1;  // a process that has not joined
  std::vector<int32_t> probed, disconnected;

 private:
  MessageQueue* queue_;
};

class TestParticipant;

// ProcessRendezvous of every process of a job.
struct Job {
  explicit Job(int32_t processes) {
    for (int32_t p = 0; p < processes; ++p) {
      transports.push_back(std::make_unique<QueueTransport>(&queue, p, processes));
      rendezvous.push_back(std::make_unique<ProcessRendezvous>(transports.back().get()));
    }
  }
  // They join, in this order, and then all messages are delivered.
  void Join(std::initializer_list<TestParticipant*> participants);
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
  std::vector<std::unique_ptr<QueueTransport>> transports;
  std::vector<std::unique_ptr<ProcessRendezvous>> rendezvous;
};

// Of an executable of which nothing says from where it counts.
inline LaunchId In(uint32_t number, int32_t copy = 0, int32_t repetition = 0) { return {number, 0, copy, repetition}; }

inline ProcessSession At(LaunchId launch_id, uint64_t call = 3) {
  ProcessSession session;
  session.key = {call, 0};
  session.launch_id = launch_id;
  session.text = "exchange over axis 'x'";
  session.prefix = "exchange: ";
  session.timeout = std::chrono::seconds(1500);  // by the clock in hand: none of it passes while a test runs
  return session;
}

class TestParticipant final : public Participant {
 public:
  TestParticipant(Job* job, int32_t process, ProcessSession session = At(In(1)), std::vector<int64_t> words = {1})
      : job_(job), process_(process), process_session_(std::move(session)) {
    process_session_.participant = this;
    for (int32_t other = 0; other < static_cast<int32_t>(job->transports.size()); ++other) {
      if (other != process) process_session_.others.push_back(other);
    }
    process_session_.words = std::move(words);
    process_session_.Encode();
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

inline void Job::Join(std::initializer_list<TestParticipant*> participants) {
  for (TestParticipant* const participant : participants) participant->Join();
  DeliverAll();
}

inline ProcessSession AtAnotherCall() {
  ProcessSession elsewhere = At(In(1));
  elsewhere.key.call = 4;
  elsewhere.text = "exchange over axis 'z'";
  return elsewhere;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_RENDEZVOUS_PROCESS_RENDEZVOUS_RIG_H_
