// Declares PendingMessages: messages that have been put on streams and may not have moved yet. It knows who waits for
// whom, and since when.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_PENDING_MESSAGES_H_
#define FASTJAX_BACKENDS_GPU_NCCL_PENDING_MESSAGES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/device/channel.h"
#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/report.h"
#include "backends/gpu/nccl/communicators.h"
#include "exchange/status.h"

namespace fastjax::gpu::nccl {

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
