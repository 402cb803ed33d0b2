#include "backends/network/ucx/loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace fastjax::network::ucx {
namespace {

// How long to poll while something is in flight before sleeping: about as long as waking up takes. More would take the
// processor from the devices' own threads.
constexpr std::chrono::microseconds kSpin{30};

bool Watch(int epoll, int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

Loop::~Loop() {
  if (epoll_ >= 0) close(epoll_);
  for (const int end : doorbell_) {
    if (end >= 0) close(end);
  }
}

std::string Loop::Start(const std::vector<int>& descriptors) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  bool watched = epoll_ >= 0 && pipe2(doorbell_.data(), O_CLOEXEC | O_NONBLOCK) == 0 && Watch(epoll_, doorbell_[0]);
  for (const int descriptor : descriptors) watched = watched && Watch(epoll_, descriptor);
  if (!watched) return "the system has no descriptors left for epoll";
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return std::string("no thread: ") + error.what();
  }
  return "";
}

bool Loop::Post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return false;
    tasks_.push_back(std::move(task));
  }
  Wake();
  return true;
}

void Loop::Wake() {
  // A thread that is about to sleep sets `asleep_` first and looks at the tasks after that.
  if (!asleep_.exchange(false)) return;
  const char byte = 1;
  [[maybe_unused]] const ssize_t written = write(doorbell_[1], &byte, 1);  // if it is full, it rings
}

void Loop::Halt() {
  halted_.store(true);
  asleep_.store(true);  // in case it is about to be
  Wake();
}

bool Loop::Join(std::chrono::milliseconds limit) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!end_.wait_for(lock, limit, [this] { return ended_; })) return false;
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

bool Loop::RunTasks() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.swap(tasks_);
  }
  for (auto& task : running_) {
    if (halted_.load()) break;
    task();
    task = nullptr;
  }
  const bool any = !running_.empty();
  running_.clear();
  return any;
}

void Loop::Run() {
  pthread_setname_np(pthread_self(), "fastjax-network");
  Clock::time_point next_tick = Clock::now();
  Clock::time_point last_work = next_tick;
  while (!halted_.load()) {
    bool worked = RunTasks();
    worked |= Poll();
    if (Ended() && EndWithoutTasks()) return;
    const Clock::time_point now = Clock::now();
    if (now >= next_tick) {
      Tick(now);
      next_tick = now + kTick;
    }
    if (worked) last_work = now;
    if (worked || (Expecting() && now - last_work < kSpin)) continue;
    Sleep(std::chrono::duration_cast<std::chrono::milliseconds>(next_tick - now) + std::chrono::milliseconds{1});
  }
  static_cast<void>(EndWithoutTasks());
}

// Ends the loop if there are no tasks: unless it is halted, a task for which Post returned true must be run.
bool Loop::EndWithoutTasks() {
  // Notifies under the lock, so that the waiting thread cannot destroy the condition variable meanwhile.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!tasks_.empty() && !halted_.load()) return false;
  ended_ = true;
  end_.notify_all();
  return true;
}

void Loop::Sleep(std::chrono::milliseconds limit) {
  asleep_.store(true);
  bool tasks = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks = !tasks_.empty();
  }
  if (!tasks && !halted_.load() && Arm()) {
    std::array<epoll_event, 8> events{};
    const int happened =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), static_cast<int>(limit.count()));
    for (int i = 0; i < happened; ++i) {
      if (events[static_cast<size_t>(i)].data.fd != doorbell_[0]) continue;
      std::array<char, 64> rung{};
      [[maybe_unused]] const ssize_t got = read(doorbell_[0], rung.data(), rung.size());
    }
  }
  asleep_.store(false);
}

}  // namespace fastjax::network::ucx
