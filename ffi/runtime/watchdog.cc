#include "runtime/watchdog.h"

#include <thread>

namespace fastjax {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr int kIdleTicksBeforeSleep = 40;

}  // namespace

Watchdog::Watchdog() {
  std::thread([this] { Loop(); }).detach();
}

void Watchdog::Watch(const std::shared_ptr<Expirable>& expirable) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_.push_back(expirable);
}

void Watchdog::Wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  awake_.store(true);
  wake_.notify_one();
}

bool Watchdog::ExpireAll() {
  std::vector<std::shared_ptr<Expirable>> alive;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t kept = 0;
    for (auto& weak : watched_) {
      if (auto strong = weak.lock()) {
        alive.push_back(std::move(strong));
        watched_[kept++] = weak;
      }
    }
    watched_.resize(kept);
  }
  const auto now = std::chrono::steady_clock::now();
  bool waiting = false;
  for (const auto& expirable : alive) waiting |= expirable->Expire(now);
  return waiting;
}

void Watchdog::Loop() {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return awake_.load(); });
    }
    for (int idle = 0; idle < kIdleTicksBeforeSleep; ++idle) {
      std::this_thread::sleep_for(kTick);
      if (ExpireAll()) idle = -1;
    }
    awake_.store(false);
    // A thread that began to wait before that store saw an awake watchdog: look once more.
    if (ExpireAll()) awake_.store(true);
  }
}

}  // namespace fastjax
