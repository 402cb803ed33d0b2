// Declares Watchdog, whose thread bounds every wait.
#ifndef FASTJAX_RUNTIME_WATCHDOG_H_
#define FASTJAX_RUNTIME_WATCHDOG_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax {

class Expirable {
 public:
  virtual ~Expirable() = default;
  // Fails what has timed out at `now`; returns whether anything is still waiting.
  virtual bool Expire(std::chrono::steady_clock::time_point now) = 0;
};

// One thread that looks at everything that waits, a few times a second while there is something to look at and
// not at all otherwise.
class Watchdog {
 public:
  // The process's watchdog.
  static Watchdog& Get() { return ProcessState<Watchdog>(); }

  void Watch(const std::shared_ptr<Expirable>& expirable);

  // To be called when something begins to wait. It costs nothing unless the watchdog sleeps.
  void Touch() {
    if (!awake_.load()) Wake();
  }

 private:
  friend Watchdog& ProcessState<Watchdog>();

  Watchdog();
  void Loop();
  void Wake();
  bool ExpireAll();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<Expirable>> watched_;
  std::atomic<bool> awake_{false};
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_WATCHDOG_H_
