#include "backends/gpu/nccl/poll.h"

#include <thread>

namespace fastjax::gpu::nccl {

Clock::time_point Waiter::Now() const { return Clock::now(); }

void Waiter::Yield() const { std::this_thread::yield(); }

void Waiter::Sleep(std::chrono::microseconds time) const { std::this_thread::sleep_for(time); }

const Waiter* ThreadWaiter() {
  static const Waiter waiter;
  return &waiter;
}

bool Poll::Pause(Clock::time_point deadline) const {
  const Clock::time_point now = waiter_->Now();
  if (now >= deadline) return false;
  if (now < until_) {
    waiter_->Yield();
  } else {
    waiter_->Sleep(kSleep);
  }
  return true;
}

}  // namespace fastjax::gpu::nccl
