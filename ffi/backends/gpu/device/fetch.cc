#include "backends/gpu/device/fetch.h"

#include <algorithm>

#include "kernels/fetch.h"

namespace fastjax::gpu {
namespace {

constexpr size_t kAlignment = 64;
// All warps of these have half a megabyte of loads in flight: more than the host's link takes while one load lasts.
constexpr int64_t kMaxBlocks = 32;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Fetch::~Fetch() { gpu_->Return(caller_.device, Place::kPinned, pinned_, used_ ? caller_.stream : nullptr); }

Status Fetch::Run(const Caller& caller) {
  caller_.device = caller.device;
  caller_.stream = caller.stream;
  size_t bytes = Aligned(room_bytes_);
  for (const Wanted& wanted : wanted_) bytes += Aligned(wanted.bytes);
  if (Status status = gpu_->Take(caller.device, Place::kPinned, bytes, &pinned_); !status.ok()) return status;
  if (room_ != nullptr) *room_ = pinned_.data;
  kernels::Event event = nullptr;
  DeviceScope scope(*gpu_);
  Status status = scope.Choose(caller.device);
  if (status.ok()) status = gpu_->TakeEvent(caller.device, &event);
  if (status.ok()) status = gpu_->LoadKernels(caller.device);
  if (status.ok()) status = Launch(caller);
  if (status.ok()) {
    status = gpu_->Check(gpu_->driver().RecordEvent(event, caller.stream), caller.device, "record an event");
  }
  // Waits after a failure too, since a kernel may be running.
  const int waited =
      status.ok() ? gpu_->driver().SynchronizeEvent(event) : gpu_->driver().SynchronizeStream(caller.stream);
  if (status.ok()) status = gpu_->Check(waited, caller.device, "finish the work before the exchange");
  gpu_->ReturnEvent(caller.device, event);
  return status;
}

// One launch, unless there is more than any call has.
Status Fetch::Launch(const Caller& caller) {
  kernels::FetchList list;
  size_t at = Aligned(room_bytes_);
  int64_t shares = 0;
  const auto launch = [&] {
    const int64_t wanted = (shares + kernels::kSharesOfBlock - 1) / kernels::kSharesOfBlock;
    const auto blocks = static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, kMaxBlocks));
    const int code = gpu_->driver().Fetch(&list, blocks, caller.stream);
    list.count = 0;
    shares = 0;
    return gpu_->Check(code, caller.device, "launch a kernel");
  };
  for (const Wanted& wanted : wanted_) {
    std::byte* const here = pinned_.data + at;
    at += Aligned(wanted.bytes);
    const auto* const there = static_cast<const std::byte*>(*wanted.where);
    *wanted.where = here;
    if (wanted.bytes == 0) continue;
    shares += kernels::CountShares(static_cast<int64_t>(wanted.bytes));
    // What is too short to say how much is in use is no table; whoever reads it says so.
    const bool says = wanted.bytes >= wanted.shape.count_at + sizeof(int32_t);
    const TableShape shape = says ? wanted.shape : TableShape{};
    list.entries[list.count++] = {here,
                                  there,
                                  static_cast<int64_t>(wanted.bytes),
                                  static_cast<int64_t>(shape.head),
                                  static_cast<int64_t>(shape.each),
                                  static_cast<int64_t>(shape.count_at)};
    if (list.count < kernels::kMaxFetched) continue;
    if (Status status = launch(); !status.ok()) return status;
  }
  return list.count == 0 ? Status::Ok() : launch();
}

}  // namespace fastjax::gpu
