#include "transport/gpu/fetch.h"

namespace fastjax::transport::gpu {
namespace {

constexpr size_t kAlignment = 64;
size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Fetch::~Fetch() { gpu_->ReturnPinned(caller_.device, pinned_, used_ ? caller_.stream : nullptr); }

Status Fetch::Run(const Caller& caller) {
  caller_.device = caller.device;
  caller_.stream = caller.stream;
  size_t bytes = Aligned(room_bytes_);
  for (const Wanted& wanted : wanted_) bytes += Aligned(wanted.bytes);
  if (Status status = gpu_->TakePinned(caller.device, bytes, &pinned_); !status.ok()) return status;
  if (room_ != nullptr) *room_ = pinned_.data;
  kernels::Event event = nullptr;
  DeviceScope scope(*gpu_);
  Status status = scope.Choose(caller.device);
  if (status.ok()) status = gpu_->TakeEvent(caller.device, &event);
  if (status.ok()) status = CopyAll(caller);
  if (status.ok()) {
    status = gpu_->Check(gpu_->driver().RecordEvent(event, caller.stream), caller.device, "record an event");
  }
  // Also after a failure: copies may be under way.
  const int waited =
      status.ok() ? gpu_->driver().SynchronizeEvent(event) : gpu_->driver().SynchronizeStream(caller.stream);
  if (status.ok()) status = gpu_->Check(waited, caller.device, "finish the work before the exchange");
  gpu_->ReturnEvent(caller.device, event);
  return status;
}

Status Fetch::CopyAll(const Caller& caller) {
  size_t at = Aligned(room_bytes_);
  for (const Wanted& wanted : wanted_) {
    std::byte* const here = pinned_.data + at;
    at += Aligned(wanted.bytes);
    const void* const there = *wanted.where;
    *wanted.where = here;
    if (wanted.bytes == 0) continue;
    const int code = gpu_->driver().Copy(here, there, wanted.bytes, caller.stream);
    if (code != 0) return gpu_->Check(code, caller.device, "copy offsets and sizes");
  }
  return Status::Ok();
}

}  // namespace fastjax::transport::gpu
