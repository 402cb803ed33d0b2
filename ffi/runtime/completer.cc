#include "runtime/completer.h"

#include <system_error>
#include <thread>
#include <utility>

namespace fastjax {

void Completer::Run(std::function<void()> task) {
  if (!Queue(&task)) task();
}

// Returns false if the caller must run the task.
bool Completer::Queue(std::function<void()>* task) {
  Worker* worker = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      worker = idle_.back();
      idle_.pop_back();
      worker->called = true;
    } else if (!AddThread() && threads_ == 0) {
      // The system has no more threads. If there are some, the task waits for the next one that is idle.
      return false;
    }
    waiting_.push_back(std::move(*task));
  }
  if (worker != nullptr) worker->wake.notify_one();
  return true;
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
