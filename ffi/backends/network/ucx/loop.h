// Declares the wire's thread. It polls what its owner gives it to poll, runs posted tasks, and sleeps when there is
// nothing to do.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_LOOP_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_LOOP_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fastjax::network::ucx {

using Clock = std::chrono::steady_clock;

// What the thread works for. All of it is called on the thread.
class Driven {
 public:
  virtual ~Driven() = default;
  // Does what can be done without waiting; returns whether there was anything.
  virtual bool Poll() = 0;
  // Whether something is in flight, so that polling again is better than sleeping.
  virtual bool Expecting() const = 0;
  // Makes the descriptors given to Start wake the thread; false if there is something to poll already.
  virtual bool Arm() = 0;
  virtual void Tick(Clock::time_point now) = 0;
  // Whether the thread may end, once there are no tasks: as long as there are, they are run, with Poll. Not called if
  // it is halted.
  virtual bool Ended() = 0;
};

class Loop {
 public:
  static constexpr std::chrono::milliseconds kTick{100};

  explicit Loop(Driven* driven) : driven_(driven) {}
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Empty, or what the system refused.
  std::string Start(const std::vector<int>& descriptors);
  // From any thread; in order. False, and the task is not run, once the loop has ended.
  bool Post(std::function<void()> task);
  // Asks the thread to stop where it is, without another call of the owner's.
  void Halt();
  // From any thread: there is something to poll.
  void Wake();
  // The end to read of a pipe. What is written into it wakes the thread; anybody may. Negative before Start.
  int doorbell() const { return doorbell_[0]; }
  // Whether the thread has ended by then.
  bool Join(std::chrono::milliseconds limit);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Run();
  bool RunTasks();
  bool NoMoreTasks();
  void Sleep(std::chrono::milliseconds limit);

  Driven* const driven_;
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
