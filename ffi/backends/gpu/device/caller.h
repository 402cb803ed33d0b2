// Declares Caller: what the handler of one GPU passes to the backend for one call of an exchange. The handler owns it,
// on the thread on which XLA called it.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_CALLER_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_CALLER_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "exchange/operation.h"
#include "kernels/driver.h"

namespace fastjax::gpu {

struct Caller {
  kernels::Stream stream = nullptr;  // what the device does before and after, in order
  int32_t device = 0;                // the driver's number of it
  // Memory of the device, for what this call puts on the stream, or has the stream wait for; null if there is none
  // left. May be called from another thread while the caller waits.
  std::function<std::byte*(size_t bytes)> allocate = nullptr;
  bool beside = false;  // the device computes something else meanwhile, on another stream
};

// Returns the GPU's part of the arguments of a device; null for a device of another process. The call site must be one
// of GPUs.
inline const Caller* CallerOf(const ExchangeArgs& args) { return static_cast<const Caller*>(args.context); }

// For errors: what is to be done where a device has no memory left.
inline constexpr const char* kLeaveMemory =
    "leave more to it: smaller arrays, or, for layers in chunks, whose exchanges have memory that is not JAX's, a "
    "smaller XLA_PYTHON_CLIENT_MEM_FRACTION";

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_CALLER_H_
