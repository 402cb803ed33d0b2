// Declares PendingMessages: messages that have been put on streams and may not have moved yet. It knows who waits for
// whom, and since when. And Report: what is wrong with them, for the group's next exchange to return.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_PENDING_MESSAGES_H_
#define FASTJAX_BACKENDS_GPU_NCCL_PENDING_MESSAGES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/nccl/communicators.h"
#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax::gpu::nccl {

// A group of a call site, as errors speak of it: exchanges are over for the host before they have happened, so that
// what goes wrong then is told to the next.
class Report {
 public:
  Report(const CallSite& site, int32_t group) : site_(site), group_(group) {}

  const CallSite& site() const { return site_; }
  // "device 3, device 5", by rank; of many, the first.
  std::string NamesOf(std::vector<int32_t> ranks) const;

  // The first that is set is taken, once.
  void Set(Status failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = std::move(failure);
  }
  Status Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(failure_, Status::Ok());
  }

 private:
  const CallSite site_;  // a copy: what is in flight may outlive the call site
  const int32_t group_;
  std::mutex mutex_;
  Status failure_;
};

// The messages of one pipeline step. Reused: allocates only when it is given more than ever before.
class PendingMessages {
 public:
  using Clock = std::chrono::steady_clock;

  // Marks on the streams where the messages begin and where they end.
  Status Begin(Gpu* gpu, const std::vector<Member>& members, std::shared_ptr<Report> report, const MessageEnd* messages,
               int64_t count, const std::vector<kernels::Stream>& streams);
  Status End(Gpu* gpu, const std::vector<Member>& members, const std::vector<kernels::Stream>& streams);
  void ReturnEvents(Gpu* gpu, const std::vector<Member>& members);

  bool HasLanded(const Gpu& gpu) const;
  // Time counts from when all of these devices have come to it: what they compute before is theirs.
  bool IsLate(const Gpu& gpu, Clock::time_point now);
  // Who waits for whom, for how long; `ended`: End was called.
  std::string Text(const Gpu& gpu, const std::vector<Member>& members, bool ended) const;
  Report* report() const { return report_.get(); }

 private:
  struct PendingCall {
    kernels::Event began = nullptr;
    kernels::Event ended = nullptr;
    bool pending = false;
  };

  static bool IsReached(const Gpu& gpu, kernels::Event event);

  std::shared_ptr<Report> report_;
  std::vector<PendingCall> calls_;                  // by member
  std::vector<std::pair<int32_t, int32_t>> peers_;  // call, rank at the other end
  int32_t pipeline_step_ = 0;
  bool began_ = false;
  Clock::time_point since_;
};

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_PENDING_MESSAGES_H_
