// Call sites for tests of the transport, and completions that can be waited for.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_TRANSPORT_SUPPORT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_TRANSPORT_SUPPORT_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax::test {

// Far beyond the time limit of any test: nothing that uses it may time out.
inline constexpr int64_t kNoTimeoutMs = 3'600'000;

inline std::vector<int32_t> Numbers(int32_t count, std::mt19937_64* random) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (random != nullptr) std::shuffle(numbers.begin(), numbers.end(), *random);
  return numbers;
}

// Partitions are dealt to groups, and ranks to positions, in order, or at random when there is a `random`.
inline std::shared_ptr<CallSite> MakeSite(int32_t groups, int32_t group_size, int64_t timeout_ms = kNoTimeoutMs,
                                          std::mt19937_64* random = nullptr) {
  auto site = std::make_shared<CallSite>();
  site->operation = "exchange";
  site->axis = "'x'";
  site->channel = 7;
  site->timeout_ms = timeout_ms;
  site->group_size = group_size;
  const std::vector<int32_t> partitions = Numbers(groups * group_size, random);
  site->group_of.resize(partitions.size());
  site->position_of.resize(partitions.size());
  for (int32_t i = 0; i < groups * group_size; ++i) {
    site->group_of[partitions[i]] = i / group_size;
    site->position_of[partitions[i]] = i % group_size;
    site->partition_at.push_back(partitions[i]);
  }
  site->rank_of = Numbers(group_size, random);
  site->position_at.resize(site->rank_of.size());
  for (int32_t p = 0; p < group_size; ++p) site->position_at[site->rank_of[p]] = p;
  return site;
}

inline int32_t PartitionOf(const CallSite& site, int32_t group, int32_t position) {
  return site.partition(group, position);
}

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

// Lets nobody through until `count` have come.
class Barrier {
 public:
  explicit Barrier(int32_t count) : missing_(count) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    --missing_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t missing_;
};

// body(i) for i in [0, count), each on a thread of its own, all at once.
template <typename Body>
void RunThreads(int32_t count, Body body) {
  Barrier start(count);
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.Wait();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_TRANSPORT_SUPPORT_H_
