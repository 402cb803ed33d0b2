// Declares CommunicatorGroup: communicators in use. It moves messages, watches those in flight, and aborts all
// communicators when some messages do not arrive.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATOR_GROUP_H_
#define FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATOR_GROUP_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/nccl/communicators.h"
#include "backends/gpu/nccl/pending_messages.h"
#include "runtime/watchdog.h"

namespace fastjax::gpu::nccl {

// Thread-safe.
class CommunicatorGroup final : public Expirable, public std::enable_shared_from_this<CommunicatorGroup> {
 public:
  // Closed when the last of those that it is given to lets go of it.
  static std::shared_ptr<CommunicatorGroup> Create(std::shared_ptr<Gpu> gpu,
                                                   std::unique_ptr<Communicators> communicators);
  ~CommunicatorGroup() override;

  // For a call site's group. An error is the caller's alone, and ends the group of communicators; what happens later is
  // reported.
  Status Move(const std::shared_ptr<Report>& report, const MessageEnd* messages, int64_t count,
              const std::vector<kernels::Stream>& streams);
  // Whether it is of these, and has not failed.
  bool IsReadyFor(const std::vector<Member>& members) const;
  // Whether communicators that failed have been aborted; waits for that.
  bool AwaitAbort(int64_t timeout_ms);

  bool Expire(PendingMessages::Clock::time_point now) override;

 private:
  // A stream takes about a thousand launches before it keeps the host waiting, and NCCL must not be what waits: it
  // could not be aborted.
  static constexpr uint64_t kMostPending = 128;

  CommunicatorGroup(std::shared_ptr<Gpu> gpu, std::unique_ptr<Communicators> communicators)
      : gpu_(std::move(gpu)), communicators_(std::move(communicators)) {}

  const std::vector<Member>& members() const { return communicators_->members(); }
  Status AwaitRoom(Report* report, std::unique_lock<std::mutex>* calling);
  void Reap();
  Status FindFault(PendingMessages::Clock::time_point now, Report** told);
  void Fail(const Status& failure, const Report* told);
  Status FailureFor(Report* report) const;
  void Close();
  bool CloseIfLanded();
  PendingMessages& At(uint64_t pending) { return pending_[pending % kMostPending]; }

  const std::shared_ptr<Gpu> gpu_;
  const std::unique_ptr<Communicators> communicators_;

  // Who holds this calls NCCL, or has the one pending that is not yet in the list; taken before the other.
  std::mutex calling_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<PendingMessages, kMostPending> pending_;
  uint64_t landed_ = 0;  // messages [landed_, launched_) may be in flight
  uint64_t launched_ = 0;
  Status failure_;
  bool aborted_ = false;
  bool closed_ = false;
};

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATOR_GROUP_H_
