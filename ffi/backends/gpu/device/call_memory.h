// Declares CallMemory: memory of a device for one call on a stream that is not the one of XLA's memory.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_CALL_MEMORY_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_CALL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/device/gpu.h"

namespace fastjax::gpu {

// XLA takes back what a handler got of its memory when the handler returns, and may give it to anything that is ordered
// behind its stream of computation. Work on another stream may still use it then. What is got here is kept until the
// call's stream has come to where it was when this ended.
class CallMemory {
 public:
  CallMemory(Gpu* gpu, int32_t device, kernels::Stream stream) : gpu_(gpu), device_(device), stream_(stream) {}
  ~CallMemory() {
    for (const Kept& kept : taken_) gpu_->ReturnMemory(device_, kept, stream_);
  }
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  // Null if the device has none left.
  std::byte* Allocate(size_t bytes) {
    taken_.emplace_back();  // first, since it may throw
    return gpu_->TakeMemory(device_, bytes, &taken_.back()).ok() ? taken_.back().data : nullptr;
  }

 private:
  Gpu* const gpu_;
  const int32_t device_;
  const kernels::Stream stream_;
  std::vector<Kept> taken_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_CALL_MEMORY_H_
