// What the GPU backend asks of a GPU: a table of functions, made from one source for each vendor (gpu.cc) and loaded
// when it is needed, so that neither fastjax nor its tests need a vendor's libraries.
#ifndef FASTJAX_KERNELS_DRIVER_H_
#define FASTJAX_KERNELS_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"
#include "kernels/fetch.h"
#include "kernels/gathers.h"
#include "kernels/indexed_sums.h"
#include "kernels/moves.h"
#include "kernels/sum.h"

namespace fastjax::kernels {

using Stream = void*;  // cudaStream_t, hipStream_t
using Event = void*;   // cudaEvent_t, hipEvent_t

// Each returns 0 or the vendor's error code. Work on a stream is ordered; streams of all devices run at once. Calls
// that make something, or launch something, are for the device that SetDevice chose for the calling thread.
struct Driver {
  int32_t version;
  const char* platform;  // as XLA calls it

  const char* (*ErrorText)(int code);
  int (*CountDevices)(int* count);
  // kNoDevice: the calling thread has not chosen any. It has to, before it calls what needs one.
  int (*GetDevice)(int* device);
  int (*SetDevice)(int device);
  int (*CountMultiprocessors)(int* count, int device);
  // Lets kernels that run on the current device touch memory of `peer`; `possible` says whether the hardware can. May
  // be repeated.
  int (*EnablePeer)(int peer, int* possible);

  int (*Malloc)(void** memory, size_t bytes);
  int (*Free)(void* memory);
  int (*MallocPinned)(void** memory, size_t bytes);  // host memory
  int (*FreePinned)(void* memory);

  int (*CreateStream)(Stream* stream);
  int (*DestroyStream)(Stream stream);
  int (*SynchronizeStream)(Stream stream);
  int (*CreateEvent)(Event* event);
  int (*DestroyEvent)(Event event);
  int (*RecordEvent)(Event event, Stream stream);
  int (*WaitEvent)(Stream stream, Event event);  // the stream waits, the caller does not
  int (*SynchronizeEvent)(Event event);
  int (*QueryEvent)(Event event, int* reached);

  // Between any two places, on the host (pinned) or devices.
  int (*Copy)(void* dst, const void* src, size_t bytes, Stream stream);
  // Calls `function` on a thread of the vendor's, in order with the stream's work; it must call nothing of this table.
  int (*CallHost)(Stream stream, void (*function)(void*), void* data);

  // Loads all kernels below for the current device. A kernel that is loaded by its first launch may wait for the device
  // to be idle: for a message or a collective whose peers wait for what is behind that launch, for ever.
  int (*LoadKernels)();
  // The kernel of moves.h; lists are in device memory, `end` is that of their line, and `blocks` the size of the grid.
  int (*MoveRows)(const Move* moves, int64_t count, int64_t end, int32_t blocks, Stream stream);
  // Does the same with a list in any memory of the host, of at most kFewMoves: the launch takes it along, and the
  // caller may reuse its list when the call returns. Nothing is copied to the device beforehand.
  int (*MoveFew)(const Move* moves, int64_t count, int64_t end, int32_t blocks, Stream stream);
  // The kernel of gathers.h, likewise.
  int (*GatherRows)(const Gather* gathers, int64_t count, int64_t end, int64_t row_bytes, int32_t blocks,
                    Stream stream);
  // The kernel of indexed_sums.h. The launch takes `sum` along, what it points to is in device memory.
  int (*SumIndexed)(SumTypes types, const IndexedSum* sum, int32_t blocks, Stream stream);
  // To pinned memory of the host, of which whoever waits for the stream then sees the bytes.
  int (*Fetch)(const FetchList* list, int32_t blocks, Stream stream);
};

constexpr int kNoDevice = -1;

constexpr int32_t kDriverVersion = 7;
constexpr const char* kDriverSymbol = "fastjax_gpu_driver";

}  // namespace fastjax::kernels

// What a vendor's library exports.
extern "C" __attribute__((visibility("default"))) const fastjax::kernels::Driver* fastjax_gpu_driver();

#endif  // FASTJAX_KERNELS_DRIVER_H_
