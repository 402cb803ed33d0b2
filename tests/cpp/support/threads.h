// Threads that start at the same time.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_THREADS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_THREADS_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace fastjax::test {

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

#endif  // FASTJAX_TESTS_CPP_SUPPORT_THREADS_H_
