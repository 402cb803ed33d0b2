// Declares Runner, which executes a message schedule over a transport, on the transport's thread.
#ifndef FASTJAX_BACKENDS_NETWORK_RUNNER_H_
#define FASTJAX_BACKENDS_NETWORK_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "runtime/copy_pool.h"
#include "runtime/reused.h"
#include "runtime/transport.h"

namespace fastjax::network {

// Returns the window of a call site's sends (Listener::window).
int64_t WindowOf(const CallSite& site);

// All methods are called on the transport's thread. Later exchanges reuse a runner. It must not be destroyed between
// Start and `done`.
class Runner final : public Listener {
 public:
  // The most stages that a device may have in flight. A receiver's window is the credit of its senders: large messages
  // wait at their sender until the receiver asks for them (docs/design/network.md).
  static constexpr int32_t kWindow = 4;
  // The low bits of a tag, which tell the messages of one exchange apart.
  static constexpr int kTagBits = 16;

  // `exchange_tag` makes the other bits of the first tags. Runners of a lower `order` go first. `done` is called
  // exactly once, on the transport's thread, from within no call of the runner's, when nothing reads or writes the
  // schedule's memory any more; the runner may then be started again or destroyed. A request that fails is reported
  // with the peer, the stage and the direction.
  void Start(Transport* transport, const CallSite* site, int32_t group, MessageSchedule* schedule,
             uint64_t exchange_tag, int64_t order, std::function<void(Status)> done);

  // Gives up: begins nothing new, asks what has begun to end, throws away what still comes, and calls done(why) when
  // everything has ended. The first reason counts; without anything running it does nothing.
  void Fail(Status why);

  // Probes the processes that it waits for, once until something moves again. Connections that do not answer are given
  // up with the exchange: they were cut off, and recover too slowly for the next exchange.
  void Probe();

  // To be called about ten times a second. Some time after the runner gave up, disconnects from processes whose
  // requests have not ended. Until then they may end by themselves, and other exchanges with that process go on.
  void Tick(std::chrono::steady_clock::time_point now);

  bool running() const { return running_; }
  // Returns the status that `done` will get, while the runner still waits for requests to end.
  const Status& failure() const { return failure_; }
  std::chrono::steady_clock::time_point last_progress() const { return last_progress_; }
  // Returns what the runner waits for: "stage 3 of 12: 4 messages to receive from process 1 (host a): devices 2, 3;
  // ...".
  std::string Waiting() const;

  void OnDone(int64_t cookie, const Status& status) override;
  void OnMoved(int64_t cookie) override;
  int64_t order() const override { return order_; }
  int32_t stage(int64_t cookie) const override { return schedule_->steps()[static_cast<size_t>(cookie)].stage; }
  int64_t window() const override { return WindowOf(*site_); }

  // Throws away what arrives for an exchange that was given up, so that its senders need not wait. Also for exchanges
  // that others began and this process did not.
  static void DropRows(Transport* transport, const CallSite& site, uint64_t exchange_tag);

 private:
  enum class State : uint8_t { kToCome, kBegun, kEnded };
  struct Cursor {
    int32_t next = 0;  // round
    int32_t open = 0;  // rounds begun and not ended
  };
  struct Copying {
    Runner* runner;
    std::vector<int32_t> steps;
    CopyJob job;
  };
  struct Waited;

  void Prepare();
  void Advance(int32_t queue);
  void Begin(int32_t step);
  void EndStep(int32_t step);
  void OpenGate(const Gate& gate);
  void AddCopies(int32_t round);
  void Copy();
  int32_t TakeReady();
  bool CopyOnPool();
  void CopyHere(int32_t step) const;
  void CopyDone(Copying* copying);
  void EndCopy(int32_t step);
  void StartSum();
  void Settle();
  void SettleLater();
  // Posts a task, which is outstanding until it has been run, and settles then. False if the transport takes none.
  template <typename Task>
  bool PostCounted(Task task) {
    ++outstanding_;
    const bool posted = transport_->Post([this, task] {
      --outstanding_;
      task();
      Settle();
    });
    if (!posted) --outstanding_;
    return posted;
  }
  void EndRequests(Status why);
  void DisconnectFromSilent();
  void Moved();
  // Runs the task on the transport's thread, or on the calling thread if the transport's has ended. For other threads.
  void Return(const std::function<void()>& task);
  void FailStep(const Step& step, const Status& status);
  std::string StageName(const Step& step) const;
  std::string DeviceName(int32_t rank) const;
  int32_t ProcessOf(const Step& step) const;

  Transport* transport_ = nullptr;
  const CallSite* site_ = nullptr;
  int32_t group_ = 0;
  MessageSchedule* schedule_ = nullptr;
  uint64_t tag_ = 0;
  int64_t order_ = 0;
  std::function<void(Status)> done_;

  bool running_ = false;
  bool summed_ = false;
  bool disconnected_ = false;
  bool probed_ = false;
  bool copies_later_ = false;
  Status failure_;
  int64_t outstanding_ = 0;  // requests, copies and posted tasks that will come back
  int64_t copies_on_pool_ = 0;
  int64_t steps_left_ = 0;
  std::chrono::steady_clock::time_point last_progress_;
  std::chrono::steady_clock::time_point failed_at_;

  std::vector<State> states_;                       // by step
  std::vector<int32_t> round_left_;                 // by round: steps that have not ended
  std::vector<Cursor> cursors_;                     // by queue
  std::vector<int32_t> missing_;                    // by gate
  std::vector<int32_t> begun_;                      // by process: requests that have not ended
  std::vector<std::pair<int64_t, int32_t>> ready_;  // copies by priority: a heap
  int64_t ready_last_ = 0;                          // bytes of those of them that nothing waits for
  Reused<Copying> copying_;
};

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_RUNNER_H_
