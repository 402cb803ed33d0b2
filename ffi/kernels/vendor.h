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
  const auto warp_threads = static_cast<int32_t>(warpSize);
  const auto warps = static_cast<int64_t>(blockDim.x) / warp_threads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto blocks = static_cast<int64_t>(gridDim.x);
  return {thread / warp_threads * blocks + static_cast<int64_t>(blockIdx.x), blocks * warps, thread % warp_threads,
          warp_threads};
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

// For the current device: asking for its attributes has a kernel loaded.
template <int32_t kThreads, typename Body>
VendorError LoadKernel() {
#if defined(__HIP__)
  hipFuncAttributes attributes;
#else
  cudaFuncAttributes attributes;
#endif
  return FASTJAX_VENDOR(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(&RunBody<kThreads, Body>));
}

#else

// What a kernel is known by.
template <int32_t kThreads, typename Body>
const void* NameOf() {
  static const char name = 0;
  return &name;
}

template <int32_t kThreads, typename Body>
VendorError LoadKernel() {
  return emulatedLoad(NameOf<kThreads, Body>());
}

template <int32_t kThreads, typename Body>
VendorError Launch(int32_t blocks, VendorStream stream, Body body) {
  constexpr int32_t kWarpThreads = 32;
  const int64_t warps = static_cast<int64_t>(blocks) * (kThreads / kWarpThreads);
  return emulatedLaunch(stream, NameOf<kThreads, Body>(), blocks, [=] {
    for (int64_t warp = 0; warp < warps; ++warp) {
      for (int32_t thread = 0; thread < kWarpThreads; ++thread) body(Worker{warp, warps, thread, kWarpThreads});
    }
  });
}

#endif

// The few calls whose names differ by more than their prefix.

inline int MallocPinned(void** memory, size_t bytes) {
#if defined(__HIP__)
  // Kernels write to it, too, and hosts wait for no more than an event.
  return hipHostMalloc(memory, bytes, hipHostMallocCoherent);
#else
  return FASTJAX_VENDOR(HostAlloc)(memory, bytes, 0);
#endif
}

inline int FreePinned(void* memory) {
#if defined(__HIP__)
  return hipHostFree(memory);
#else
  return FASTJAX_VENDOR(FreeHost)(memory);
#endif
}

inline int CountMultiprocessors(int* count, int device) {
#if defined(__HIP__)
  return hipDeviceGetAttribute(count, hipDeviceAttributeMultiprocessorCount, device);
#else
  return FASTJAX_VENDOR(DeviceGetAttribute)(count, FASTJAX_VENDOR(DevAttrMultiProcessorCount), device);
#endif
}

// Whether the calling thread has a device, and how it gets rid of it; with HIP every thread has one.
#if defined(__HIP__)
inline bool HasDevice() { return true; }
inline int LeaveDevice() { return 0; }
#elif defined(__CUDACC__)
// Finds a function of the driver's interface through the runtime: nothing is linked against the driver.
template <typename Function>
VendorError FindDriverFunction(const char* name, Function** function) {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  VendorError error = cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result);
#else
  VendorError error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess && result != cudaDriverEntryPointSuccess) error = cudaErrorNotSupported;
  *function = reinterpret_cast<Function*>(found);
  return error;
}

// That is a matter of contexts: the runtime takes device 0 for threads that have none, and makes one there. Without the
// driver's word, the runtime's is taken.
inline bool HasDevice() {
  static int (*get_current)(void**) = nullptr;
  static const VendorError error = FindDriverFunction("cuCtxGetCurrent", &get_current);
  void* context = nullptr;
  const bool known = error == cudaSuccess && get_current(&context) == 0;
  return !known || context != nullptr;
}

inline int LeaveDevice() {
  static int (*set_current)(void*) = nullptr;
  static const VendorError error = FindDriverFunction("cuCtxSetCurrent", &set_current);
  return error != cudaSuccess ? static_cast<int>(error) : set_current(nullptr);
}
#else
inline bool HasDevice() { return emulatedHasDevice(); }
inline int LeaveDevice() {
  emulatedLeaveDevice();
  return 0;
}
#endif

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_VENDOR_H_
