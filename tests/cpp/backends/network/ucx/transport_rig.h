// Transports of one test process that talk to each other, and handler for what they say.
#ifndef FASTJAX_TESTS_CPP_BACKENDS_NETWORK_UCX_TRANSPORT_RIG_H_
#define FASTJAX_TESTS_CPP_BACKENDS_NETWORK_UCX_TRANSPORT_RIG_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/network/ucx/transport.h"
#include "support/check.h"

namespace fastjax::test {

using network::ucx::UcxTransport;

// A test waits for other threads as long as that takes; one that hangs is killed from outside. So that it is known
// where, it says after each time of this length that it still waits.
constexpr std::chrono::seconds kSilence{10};
void SayThatItWaits(const char* file, int line);

// Looks again and again until the condition holds.
template <typename Condition>
void WaitUntil(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  auto next = std::chrono::steady_clock::now() + kSilence;
  for (; !condition(); std::this_thread::yield()) {
    if (std::chrono::steady_clock::now() < next) continue;
    SayThatItWaits(file, line);
    next += kSilence;
  }
}

// Something that other threads change and say so. `file` and `line` are those of whoever waits.
class Watched {
 protected:
  template <typename Work>
  auto Locked(Work work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return work();
  }
  template <typename Work>
  void Change(Work work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work();
    changed_.notify_all();  // with the lock: whoever is told may destroy this
  }
  template <typename Condition>
  void WaitFor(Condition condition, const char* file, int line) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kSilence, condition)) SayThatItWaits(file, line);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class Ends : public Listener, public Watched {
 public:
  void OnDone(int64_t cookie, const Status& status) override {
    Change([&] {
      ended_[cookie] = status;
      ++count_;
    });
  }
  void OnMoved(int64_t cookie) override {
    Locked([&] {
      CHECK_EQ(ended_.count(cookie), 0u);
      ++moved_[cookie];
    });
  }
  void Wait(int64_t cookie, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    WaitFor([this, cookie] { return ended_.count(cookie) != 0; }, file, line);
  }
  // Waits for those before `count`, which end well.
  void CheckAll(int64_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const Context context(std::string(file) + ":" + std::to_string(line));
    for (int64_t cookie = 0; cookie < count; ++cookie) {
      Wait(cookie, file, line);
      CHECK_EQ(Of(cookie).message, "");
    }
  }
  // Waits for those, which end since a process is gone, or was given up.
  void CheckGone(std::initializer_list<int64_t> cookies, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
    const Context context(std::string(file) + ":" + std::to_string(line));
    for (const int64_t cookie : cookies) {
      Wait(cookie, file, line);
      CHECK(Of(cookie).code == Code::kUnavailable);
    }
  }
  bool Has(int64_t cookie) {
    return Locked([&] { return ended_.count(cookie) != 0; });
  }
  Status Of(int64_t cookie) {
    return Locked([&] { return ended_[cookie]; });
  }
  long count() {
    return Locked([&] { return count_; });
  }
  // Times that the request was said to move.
  long moved(int64_t cookie) {
    return Locked([&] { return moved_[cookie]; });
  }

 private:
  std::map<int64_t, Status> ended_;
  std::map<int64_t, long> moved_;
  long count_ = 0;
};

class RecordingHandler : public Handler, public Watched {
 public:
  using News = std::vector<std::pair<int32_t, Status>>;

  void OnMessage(int32_t process, const std::byte* data, size_t bytes) override {
    Change([&] { messages_.emplace_back(process, std::string(reinterpret_cast<const char*>(data), bytes)); });
  }
  void OnLost(int32_t process, const Status& status) override {
    Change([&] { lost_.emplace_back(process, status); });
  }
  void OnRenewed(int32_t process, const Status& why) override {
    Change([&] { renewed_.emplace_back(process, why); });
  }
  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {
    Change([&] { ++ticks_; });
  }
  void OnClosed(const Status& why) override {
    Change([&] { closed_ = why; });
  }
  bool Busy() const override { return busy_; }

  void WaitMessages(size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    WaitFor([this, count] { return messages_.size() >= count; }, file, line);
  }
  void WaitLost(size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    WaitFor([this, count] { return lost_.size() >= count; }, file, line);
  }
  void WaitRenewed(size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    WaitFor([this, count] { return renewed_.size() >= count; }, file, line);
  }
  void WaitClosed(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    WaitFor([this] { return !closed_.ok(); }, file, line);
  }
  void WaitTicks(int count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const int from = Locked([&] { return ticks_; });
    WaitFor([this, count, from] { return ticks_ >= from + count; }, file, line);
  }
  std::vector<std::pair<int32_t, std::string>> messages() {
    return Locked([&] { return messages_; });
  }
  News lost() {
    return Locked([&] { return lost_; });
  }
  News renewed() {
    return Locked([&] { return renewed_; });
  }
  Status closed() {
    return Locked([&] { return closed_; });
  }
  void SetBusy(bool busy) { busy_ = busy; }

 private:
  std::vector<std::pair<int32_t, std::string>> messages_;
  News lost_, renewed_;
  int ticks_ = 0;
  Status closed_;
  std::atomic<bool> busy_{false};
};

// What a transport is given to send what is on its way before it closes, where that is not what is tested: it needs a
// moment.
constexpr std::chrono::minutes kToClose{1};

// The state of a transport that is open, once its thread has told it: State() asks for a second.
TransportState StateOf(UcxTransport* transport);

// The library that the tests are run with; empty if there is none.
std::string UcxLibrary();
TransportOptions OptionsOf(int32_t process, int32_t processes, const std::string& transports);

class TransportRig {
 public:
  // `nic_workers` unnamed NICs each.
  TransportRig(int32_t processes, const std::string& transports, size_t nic_workers = 1);
  ~TransportRig();

  UcxTransport& transport(int32_t process) { return *transports_[static_cast<size_t>(process)]; }
  RecordingHandler& handler(int32_t process) { return *handlers_[static_cast<size_t>(process)]; }
  void Introduce();
  void Close(int32_t process);

  // On the transport's thread, and waits for it.
  void On(int32_t process, const std::function<void(UcxTransport*)>& work);
  void Message(int32_t from, int32_t to, const std::string& text);
  void Send(int32_t from, int32_t to, uint64_t tag, const std::vector<Iov>& iovs, Ends* ends, int64_t cookie,
            int32_t rail = 0);
  void Receive(int32_t to, int32_t from, uint64_t tag, const std::vector<Iov>& iovs, Ends* ends, int64_t cookie,
               int32_t rail = 0);

 private:
  const std::vector<Iov>& Keep(const std::vector<Iov>& iovs) { return kept_.emplace_back(iovs); }

  std::deque<std::vector<Iov>> kept_;  // until the last request has ended
  std::vector<std::unique_ptr<RecordingHandler>> handlers_;
  std::vector<std::shared_ptr<UcxTransport>> transports_;
};

// One whose transports know each other.
class ConnectedRig : public TransportRig {
 public:
  ConnectedRig(int32_t processes, const std::string& transports, size_t nic_workers = 1)
      : TransportRig(processes, transports, nic_workers) {
    Introduce();
  }
};

// Holds a transport's thread, as if its process were stopped.
class Stopped {
 public:
  Stopped(TransportRig* rig, int32_t process) {
    const auto holds = std::make_shared<std::promise<void>>();
    rig->transport(process).Post([holds, go = go_.get_future().share()] {
      holds->set_value();
      go.wait();
    });
    holds->get_future().wait();
  }
  ~Stopped() { go_.set_value(); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  std::promise<void> go_;
};

// Bytes that differ by seed and place.
std::vector<std::byte> Pattern(size_t bytes, uint32_t seed);
// All of it, as one iov.
std::vector<Iov> Whole(std::vector<std::byte>* data);
// `count` iovs that differ in length, some of them empty, with gaps between them.
std::vector<Iov> Cut(std::vector<std::byte>* data, size_t bytes, int count);
std::string Joined(const std::vector<Iov>& iovs);
// Rows that go from one to the other, and arrive as they were.
void Exchange(TransportRig* rig, int32_t from, int32_t to, uint64_t tag, int32_t rail = 0);

// Defines a test that is run over TCP, and with the transports that UCX chooses.
#define TRANSPORT_TEST(Name)                                    \
  void Test##Name(const std::string& transports);               \
  TEST(Name) {                                                  \
    for (const std::string transports : {"tcp", ""}) {          \
      const Context context("transports '" + transports + "'"); \
      Test##Name(transports);                                   \
    }                                                           \
  }                                                             \
  void Test##Name(const std::string& transports)

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_BACKENDS_NETWORK_UCX_TRANSPORT_RIG_H_
