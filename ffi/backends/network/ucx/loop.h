// Declares Loop, the transport's thread. It polls, runs posted tasks, and sleeps when there is nothing to do.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_LOOP_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_LOOP_H_

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fastjax::network::ucx {

using Clock = std::chrono::steady_clock;

// Threads that are started while one lives, ours or UCX's, get no signals: those are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Whoever is driven by the thread derives from it, and lives until the thread has ended.
class Loop {
 public:
  static constexpr std::chrono::milliseconds kTick{100};

  Loop() = default;
  virtual ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Starts the thread. Returns what the system refused, or an empty string.
  std::string Start(const std::vector<int>& descriptors);
  // Runs the task on the transport's thread, tasks in order. False, and the task is not run, once the loop has ended.
  // From any thread.
  bool Post(std::function<void()> task);
  // Asks the thread to stop where it is, without polling again.
  void Halt();
  // Wakes the thread, since there is something to poll. From any thread.
  void Wake();
  // The read end of a pipe. Writing into the pipe wakes the thread, which any process may do. Negative before Start.
  int doorbell() const { return doorbell_[0]; }
  // Waits until then. Returns whether the thread has ended.
  bool Join(std::chrono::milliseconds limit);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 protected:
  // All of these are called on the thread.
  //
  // Does all work that needs no waiting; returns whether there was any.
  virtual bool Poll() = 0;
  // Whether something is in flight, so that polling again is better than sleeping.
  virtual bool Expecting() const = 0;
  // Makes the descriptors given to Start wake the thread; false if there is something to poll already.
  virtual bool Arm() = 0;
  virtual void Tick(Clock::time_point now) = 0;
  // Whether the thread may end, once there are no tasks. Until then it polls and runs tasks. Not called after Halt.
  virtual bool Ended() = 0;

 private:
  void Run();
  bool RunTasks();
  bool EndWithoutTasks();
  void Sleep(std::chrono::milliseconds limit);

  int epoll_ = -1;
  std::array<int, 2> doorbell_{-1, -1};
  std::thread thread_;
  std::atomic<bool> halted_{false};
  std::atomic<bool> asleep_{false};

  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  bool ended_ = false;
  std::condition_variable end_;
  std::vector<std::function<void()>> running_;  // the thread's own
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_LOOP_H_
