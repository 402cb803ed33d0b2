// A GPU emulated on the host, by the names that vendor.h expects: streams are threads, device memory is memory. For
// tests of everything around the kernels, and of their arithmetic, on machines without a GPU: work that is not ordered
// by streams and events races, as it would on a GPU, and the thread sanitizer sees it. Where vendors differ, it is as
// strict as the strictest.
#ifndef FASTJAX_KERNELS_EMULATED_GPU_H_
#define FASTJAX_KERNELS_EMULATED_GPU_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace fastjax::kernels {

enum emulatedError_t {
  emulatedSuccess = 0,
  emulatedErrorInvalidValue = 1,
  emulatedErrorMemoryAllocation = 2,
  emulatedErrorInvalidConfiguration = 9,
  emulatedErrorInvalidDevice = 101,
  emulatedErrorInvalidResourceHandle = 400,
  emulatedErrorNotReady = 600,
  emulatedErrorIllegalAddress = 700,
  emulatedErrorPeerAccessAlreadyEnabled = 704,
};

struct EmulatedStream;
struct EmulatedEvent;
using emulatedStream_t = EmulatedStream*;
using emulatedEvent_t = EmulatedEvent*;

constexpr int emulatedDevices = 16;
constexpr int emulatedDevAttrMultiProcessorCount = 16;
constexpr int emulatedMemcpyDefault = 4;
constexpr unsigned emulatedStreamNonBlocking = 1;
constexpr unsigned emulatedEventDisableTiming = 2;

// What tests have go wrong, by device; -1: on none.
struct EmulatedFaults {
  std::atomic<int> pinned{-1};  // gets no pinned memory any more
  std::atomic<int> lost{-1};    // takes no work any more, as after a kernel that touched what it must not
};
EmulatedFaults& emulatedFaults();

const char* emulatedGetErrorString(emulatedError_t error);
emulatedError_t emulatedGetLastError();
emulatedError_t emulatedGetDeviceCount(int* count);
emulatedError_t emulatedGetDevice(int* device);
emulatedError_t emulatedSetDevice(int device);
// Whether the calling thread has a device. One that has none, and uses what needs one, gets device 0, as with CUDA,
// where that makes a context there: half a gigabyte of a GPU that may be another process's. `strays` counts them.
bool emulatedHasDevice();
void emulatedLeaveDevice();
std::atomic<int64_t>& emulatedStrays();
emulatedError_t emulatedDeviceGetAttribute(int* value, int attribute, int device);
emulatedError_t emulatedDeviceCanAccessPeer(int* possible, int device, int peer);
emulatedError_t emulatedDeviceEnablePeerAccess(int peer, unsigned flags);

emulatedError_t emulatedMalloc(void** memory, size_t bytes);
emulatedError_t emulatedFree(void* memory);
emulatedError_t emulatedHostAlloc(void** memory, size_t bytes, unsigned flags);
emulatedError_t emulatedFreeHost(void* memory);

emulatedError_t emulatedStreamCreateWithFlags(emulatedStream_t* stream, unsigned flags);
emulatedError_t emulatedStreamDestroy(emulatedStream_t stream);
emulatedError_t emulatedStreamSynchronize(emulatedStream_t stream);
emulatedError_t emulatedStreamWaitEvent(emulatedStream_t stream, emulatedEvent_t event, unsigned flags);

emulatedError_t emulatedEventCreateWithFlags(emulatedEvent_t* event, unsigned flags);
emulatedError_t emulatedEventDestroy(emulatedEvent_t event);
emulatedError_t emulatedEventRecord(emulatedEvent_t event, emulatedStream_t stream);
emulatedError_t emulatedEventSynchronize(emulatedEvent_t event);
emulatedError_t emulatedEventQuery(emulatedEvent_t event);

emulatedError_t emulatedMemcpyAsync(void* dst, const void* src, size_t bytes, int kind, emulatedStream_t stream);
emulatedError_t emulatedLaunchHostFunc(emulatedStream_t stream, void (*function)(void*), void* data);

// A kernel of `blocks` blocks: `work` runs in order with the stream's. One that has not been loaded for its device is
// loaded by its launch, as with CUDA, where that may wait for all that is in flight: LazyLoads counts them.
emulatedError_t emulatedLaunch(emulatedStream_t stream, const void* kernel, int blocks, std::function<void()> work);
emulatedError_t emulatedLoad(const void* kernel);  // for the current device
std::atomic<int64_t>& emulatedLazyLoads();

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_EMULATED_GPU_H_
