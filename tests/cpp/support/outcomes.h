// What became of operations: completions that can be waited for.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_OUTCOMES_H_
#define FASTJAX_TESTS_CPP_SUPPORT_OUTCOMES_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exchange/status.h"

namespace fastjax::test {

// Calls of completions that had been called before, in the whole program; main checks that there were none.
inline std::atomic<long>& RepeatedCompletions() {
  static std::atomic<long> count{0};
  return count;
}

// What became of `count` operations. Waiting is not bounded: a test that hangs is killed from outside.
class Outcomes {
 public:
  explicit Outcomes(int32_t count) : shared_(std::make_shared<Shared>(count)) {}

  Completion For(int32_t i) const {
    return [shared = shared_, i](const Status& status) {
      const std::lock_guard<std::mutex> lock(shared->mutex);
      Entry& entry = shared->entries[i];
      if (entry.called) ++RepeatedCompletions();
      entry = {true, status, std::this_thread::get_id()};
      shared->changed.notify_all();
    };
  }

  void Wait(int32_t i) const {
    std::unique_lock<std::mutex> lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return shared_->entries[i].called; });
  }
  void WaitAll() const {
    for (int32_t i = 0; i < count(); ++i) Wait(i);
  }

  int32_t count() const { return static_cast<int32_t>(shared_->entries.size()); }
  bool called(int32_t i) const { return Get(i).called; }
  Status status(int32_t i) const { return Get(i).status; }
  std::thread::id thread(int32_t i) const { return Get(i).thread; }
  bool all_ok() const {
    for (int32_t i = 0; i < count(); ++i) {
      if (!called(i) || !status(i).ok()) return false;
    }
    return true;
  }

 private:
  struct Entry {
    bool called = false;
    Status status;
    std::thread::id thread;
  };
  struct Shared {
    explicit Shared(int32_t count) : entries(static_cast<size_t>(count)) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Entry> entries;
  };

  Entry Get(int32_t i) const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->entries[i];
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_OUTCOMES_H_
