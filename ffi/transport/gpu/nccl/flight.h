// Messages that have been put on streams and may not have moved yet: who waits for whom, and since when.
#ifndef FASTJAX_TRANSPORT_GPU_NCCL_FLIGHT_H_
#define FASTJAX_TRANSPORT_GPU_NCCL_FLIGHT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/gpu/channel.h"
#include "transport/gpu/gpu.h"
#include "transport/gpu/nccl/communicators.h"
#include "transport/group.h"
#include "transport/status.h"

namespace fastjax::transport::gpu::nccl {

// A group of a call site, as errors speak of it: exchanges are over for the host before they have happened, so that
// what goes wrong then is told to the next.
class Report {
 public:
  Report(const CallSite& site, int32_t group) : site_(site), group_(group) {}

  const CallSite& site() const { return site_; }
  // "device 3", by rank.
  std::string NameOf(int32_t rank) const { return site_.DeviceName(group_, site_.position_at[rank]); }

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

// The messages of one beat. Reused: allocates only when it is given more than ever before.
class Flight {
 public:
  using Clock = std::chrono::steady_clock;

  // Marks on the streams where the messages begin and where they end.
  Status Begin(Gpu* gpu, const std::vector<Member>& members, std::shared_ptr<Report> report, const Message* messages,
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
  struct Lane {
    kernels::Event began = nullptr;
    kernels::Event ended = nullptr;
    bool flies = false;
  };

  static bool IsReached(const Gpu& gpu, kernels::Event event);

  std::shared_ptr<Report> report_;
  std::vector<Lane> lanes_;                         // by member
  std::vector<std::pair<int32_t, int32_t>> peers_;  // lane, rank at the other end
  int32_t beat_ = 0;
  bool began_ = false;
  Clock::time_point since_;
};

}  // namespace fastjax::transport::gpu::nccl

#endif  // FASTJAX_TRANSPORT_GPU_NCCL_FLIGHT_H_
