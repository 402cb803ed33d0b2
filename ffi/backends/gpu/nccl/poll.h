// Declares how a thread waits for what NCCL does on threads of its own, which only polling can tell.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_POLL_H_
#define FASTJAX_BACKENDS_GPU_NCCL_POLL_H_

#include <chrono>
#include <thread>

namespace fastjax::gpu::nccl {

using Clock = std::chrono::steady_clock;

// What a thread can do while it waits. Tests have one that counts, with a clock of its own.
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual Clock::time_point Now() const { return Clock::now(); }
  virtual void Yield() const { std::this_thread::yield(); }
  virtual void Sleep(std::chrono::microseconds time) const { std::this_thread::sleep_for(time); }
};
// That of the thread that calls. Lives as long as the process.
inline const Waiter* ThreadWaiter() {
  static const Waiter waiter;
  return &waiter;
}

// One wait, from when it is made. NCCL should need less to put a group on its streams than the shortest sleep takes,
// which is 100 us: 50 that are asked for, and 50 by which Linux may be late. So the thread only yields at first. What
// takes longer, such as making a communicator, takes milliseconds: then it sleeps, for others to have the core.
class Poll {
 public:
  static constexpr std::chrono::microseconds kYields{300};
  static constexpr std::chrono::microseconds kSleep{50};

  // `waiter` outlives it.
  explicit Poll(const Waiter* waiter) : waiter_(waiter), until_(waiter->Now() + kYields) {}

  // Waits a little. False if `deadline` has passed: then it does not.
  bool Pause(Clock::time_point deadline) const {
    const Clock::time_point now = waiter_->Now();
    if (now >= deadline) return false;
    now < until_ ? waiter_->Yield() : waiter_->Sleep(kSleep);
    return true;
  }

 private:
  const Waiter* const waiter_;
  const Clock::time_point until_;  // yields, then sleeps
};

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_POLL_H_
