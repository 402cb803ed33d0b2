// What a program is trying, and a thread that ends it when that takes too long: what hangs is to be named.
#ifndef FASTJAX_TESTS_CPP_BACKENDS_GPU_NCCL_PROGRESS_H_
#define FASTJAX_TESTS_CPP_BACKENDS_GPU_NCCL_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace fastjax::test {

// Printed as it begins; what fails is named in the last line. `name`: of the program.
class Progress {
 public:
  Progress(std::string name, std::chrono::seconds limit)
      : name_(std::move(name)), limit_(limit), thread_([this] { Watch(); }) {}
  ~Progress() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Begin(std::string what) {
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
    const std::lock_guard<std::mutex> lock(mutex_);
    what_ = std::move(what);
    ++steps_;
    changed_.notify_all();
  }
  // Without destructors: what has failed may hold what they would wait for.
  [[noreturn]] void Fail(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    End(why);
  }
  int steps() const { return steps_; }

 private:
  [[noreturn]] void End(const std::string& why) const {
    std::printf("%s: FAILED: %s: %s\n", name_.c_str(), what_.c_str(), why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }
  void Watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ended_) {
      const int step = steps_;
      if (changed_.wait_for(lock, limit_, [&] { return ended_ || steps_ != step; })) continue;
      End("has not ended after " + std::to_string(limit_.count()) + " s");
    }
  }

  const std::string name_;
  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_ = "start";
  int steps_ = 0;  // written by the main thread only
  bool ended_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_BACKENDS_GPU_NCCL_PROGRESS_H_
