// One source for CUDA, HIP and plain C++: neutral names for what the kernels and the driver need of a vendor. Compiled
// as C++, the vendor is an emulated GPU, which runs the same source on the host.
#ifndef FASTJAX_KERNELS_VENDOR_H_
#define FASTJAX_KERNELS_VENDOR_H_

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define FASTJAX_VENDOR(name) hip##name
#define FASTJAX_VENDOR_NAME "ROCM"
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define FASTJAX_VENDOR(name) cuda##name
#define FASTJAX_VENDOR_NAME "CUDA"
#else
#include "kernels/emulated_gpu.h"
#define FASTJAX_VENDOR(name) emulated##name
#define FASTJAX_VENDOR_NAME "emulated"
#endif

#include "kernels/worker.h"

namespace fastjax::kernels {

using VendorError = FASTJAX_VENDOR(Error_t);
using VendorStream = FASTJAX_VENDOR(Stream_t);
using VendorEvent = FASTJAX_VENDOR(Event_t);

#if defined(__HIP__) || defined(__CUDACC__)

#define FASTJAX_KERNEL __global__

// The warp that runs this. Warps that follow each other are of different blocks, so that little work is done by many
// multiprocessors.
__device__ inline Worker ThisWorker() {
  const auto lanes = static_cast<int32_t>(warpSize);
  const auto warps = static_cast<int64_t>(blockDim.x) / lanes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto blocks = static_cast<int64_t>(gridDim.x);
  return {thread / lanes * blocks + static_cast<int64_t>(blockIdx.x), blocks * warps, thread % lanes, lanes};
}

// Runs body(Worker) on every thread of a grid. 1,024 threads of an NVIDIA multiprocessor have 64 registers each.
template <int32_t kThreads, typename Body>
FASTJAX_KERNEL void __launch_bounds__(kThreads, kMultiprocessorThreads / kThreads) RunBody(Body body) {
  body(ThisWorker());
}

// Unlike <<<>>>, the call returns its own error, not one that an earlier call has left with the thread.
template <int32_t kThreads, typename Body>
VendorError Launch(int32_t blocks, VendorStream stream, Body body) {
  void* arguments[] = {&body};
  return FASTJAX_VENDOR(LaunchKernel)(reinterpret_cast<const void*>(&RunBody<kThreads, Body>),
                                      dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0, stream);
}

#else

template <int32_t kThreads, typename Body>
VendorError Launch(int32_t blocks, VendorStream stream, Body body) {
  constexpr int32_t kLanes = 32;
  const int64_t warps = static_cast<int64_t>(blocks) * (kThreads / kLanes);
  return emulatedLaunch(stream, blocks, [=] {
    for (int64_t warp = 0; warp < warps; ++warp) {
      for (int32_t lane = 0; lane < kLanes; ++lane) body(Worker{warp, warps, lane, kLanes});
    }
  });
}

#endif

// The few calls whose names differ by more than their prefix.

inline VendorError MallocPinned(void** memory, size_t bytes) {
#if defined(__HIP__)
  return hipHostMalloc(memory, bytes, 0);
#else
  return FASTJAX_VENDOR(HostAlloc)(memory, bytes, 0);
#endif
}

inline VendorError FreePinned(void* memory) {
#if defined(__HIP__)
  return hipHostFree(memory);
#else
  return FASTJAX_VENDOR(FreeHost)(memory);
#endif
}

inline VendorError CountMultiprocessors(int* count, int device) {
#if defined(__HIP__)
  return hipDeviceGetAttribute(count, hipDeviceAttributeMultiprocessorCount, device);
#else
  return FASTJAX_VENDOR(DeviceGetAttribute)(count, FASTJAX_VENDOR(DevAttrMultiProcessorCount), device);
#endif
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_VENDOR_H_
