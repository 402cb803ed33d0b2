#include "transport/in_process/completer.h"

#include <thread>
#include <utility>

namespace fastjax::transport::in_process {

Completer& Completer::Get() {
  static auto* completer = new Completer;
  return *completer;
}

void Completer::Run(std::function<void()> task) {
  Worker* worker = TakeIdle();
  if (worker == nullptr) {
    worker = new Worker;
    worker->task = std::move(task);
    std::thread([this, worker] { Loop(worker); }).detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    worker->task = std::move(task);
  }
  worker->wake.notify_one();
}

Completer::Worker* Completer::TakeIdle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) return nullptr;
  Worker* worker = idle_.back();
  idle_.pop_back();
  return worker;
}

void Completer::Loop(Worker* self) {
  while (true) {
    self->task();
    self->task = nullptr;
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.push_back(self);
    self->wake.wait(lock, [self] { return self->task != nullptr; });
  }
}

}  // namespace fastjax::transport::in_process
