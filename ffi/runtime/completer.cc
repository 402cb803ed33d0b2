#include "runtime/completer.h"

#include <system_error>
#include <thread>
#include <utility>

namespace fastjax {

void Completer::Run(std::function<void()> task) {
  Worker* worker = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      worker = idle_.back();
      idle_.pop_back();
      worker->called = true;
    }
    // If the system has no more threads, the task waits for the next one that is idle; without any, the caller runs it.
    if (worker != nullptr || AddThread() || threads_ > 0) waiting_.push_back(std::exchange(task, nullptr));
  }
  if (worker != nullptr) worker->wake.notify_one();
  if (task != nullptr) task();
}

bool Completer::AddThread() {
  try {
    std::thread([this] { Loop(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++threads_;
  return true;
}

// The first idle thread takes a task, so that no thread waits while a task does.
void Completer::Loop() {
  Worker self;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (!waiting_.empty()) {
      std::function<void()> task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // unlocked: what it held may run more tasks when it is destroyed
      lock.lock();
    }
    self.called = false;
    idle_.push_back(&self);
    self.wake.wait(lock, [&self] { return self.called; });
  }
}

}  // namespace fastjax
