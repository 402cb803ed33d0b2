// Declares Communicators: NCCL's communicators of one group of devices, one for each device of the group that belongs
// to this process.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATORS_H_
#define FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATORS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/nccl/library.h"
#include "exchange/status.h"

namespace fastjax::gpu::nccl {

// A device of this process.
struct Member {
  int32_t rank;
  int32_t device;
  bool operator==(const Member& other) const { return rank == other.rank && device == other.device; }
};

// Not thread-safe: NCCL is called by one thread at a time, also to ask how it is. Texts of errors say what NCCL said;
// callers put before them what it was for.
class Communicators {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes them all at once, `members` by rank, with those of other processes if `ranks` are more. With other processes
  // they do not block: what NCCL does together with these is waited for, for so long at most.
  static Status Make(const Library* library, std::shared_ptr<Gpu> gpu, int32_t ranks, std::vector<Member> members,
                     const UniqueId& id, int64_t timeout_ms, std::unique_ptr<Communicators>* made);
  // Aborts what was not closed.
  ~Communicators() { Abort(); }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  const std::vector<Member>& members() const { return members_; }

  // Puts messages on streams, by call, all in one group: calls are members. Deadline exceeded: another process has not
  // come to it.
  Status Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams,
              int64_t timeout_ms);
  // What has gone wrong meanwhile.
  Status Health() const;
  // When nothing is in flight. Waits a little for other processes.
  void Close();
  // Ends what is in flight; what it should have written is undefined.
  void Abort();

 private:
  Communicators(const Library* library, std::shared_ptr<Gpu> gpu, std::vector<Member> members, bool blocking)
      : library_(library),
        gpu_(std::move(gpu)),
        members_(std::move(members)),
        comms_(members_.size(), nullptr),
        blocking_(blocking) {}

  Status Init(int32_t ranks, const UniqueId& id, Clock::time_point deadline);
  Status Put(const MessageEnd& message, kernels::Stream stream);
  Status End(const char* what, Clock::time_point deadline);
  Status Await(const char* what, Clock::time_point deadline) const;
  Status Check(Result result, const char* what, Comm comm) const;

  const Library* const library_;
  const std::shared_ptr<Gpu> gpu_;
  const std::vector<Member> members_;
  std::vector<Comm> comms_;
  const bool blocking_;
};

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_COMMUNICATORS_H_
