// The driver of a GPU: compiled by nvcc, by clang as HIP, and, with an emulated GPU, as C++.
#include "kernels/driver.h"

#include <algorithm>

#include "kernels/vendor.h"

namespace fastjax::kernels {
namespace {

int Code(VendorError error) { return static_cast<int>(error); }
VendorStream ToStream(Stream stream) { return static_cast<VendorStream>(stream); }
VendorEvent ToEvent(Event event) { return static_cast<VendorEvent>(event); }

// What is no error to us would be found by whoever next asks for this thread's last one.
void ForgetError() { static_cast<void>(FASTJAX_VENDOR(GetLastError)()); }

const char* ErrorText(int code) { return FASTJAX_VENDOR(GetErrorString)(static_cast<VendorError>(code)); }
int CountDevices(int* count) { return Code(FASTJAX_VENDOR(GetDeviceCount)(count)); }
int GetDevice(int* device) {
  *device = kNoDevice;
  return HasDevice() ? Code(FASTJAX_VENDOR(GetDevice)(device)) : 0;
}
int SetDevice(int device) { return device == kNoDevice ? LeaveDevice() : Code(FASTJAX_VENDOR(SetDevice)(device)); }

int EnablePeer(int peer, int* possible) {
  int device = 0;
  *possible = 0;
  if (const VendorError error = FASTJAX_VENDOR(GetDevice)(&device); error != FASTJAX_VENDOR(Success))
    return Code(error);
  if (device == peer) {
    *possible = 1;
    return 0;
  }
  if (const VendorError error = FASTJAX_VENDOR(DeviceCanAccessPeer)(possible, device, peer);
      error != FASTJAX_VENDOR(Success) || *possible == 0) {
    return Code(error);
  }
  const VendorError error = FASTJAX_VENDOR(DeviceEnablePeerAccess)(peer, 0);
  if (error != FASTJAX_VENDOR(ErrorPeerAccessAlreadyEnabled)) return Code(error);
  ForgetError();  // XLA has done it
  return 0;
}

int Malloc(void** memory, size_t bytes) { return Code(FASTJAX_VENDOR(Malloc)(memory, bytes)); }
int Free(void* memory) { return Code(FASTJAX_VENDOR(Free)(memory)); }

int CreateStream(Stream* stream) {
  VendorStream made{};
  // The stream does not synchronize with the default stream, which belongs to the whole process.
  const VendorError error = FASTJAX_VENDOR(StreamCreateWithFlags)(&made, FASTJAX_VENDOR(StreamNonBlocking));
  *stream = made;
  return Code(error);
}
int DestroyStream(Stream stream) { return Code(FASTJAX_VENDOR(StreamDestroy)(ToStream(stream))); }
int SynchronizeStream(Stream stream) { return Code(FASTJAX_VENDOR(StreamSynchronize)(ToStream(stream))); }

int CreateEvent(Event* event) {
  VendorEvent made{};
  const VendorError error = FASTJAX_VENDOR(EventCreateWithFlags)(&made, FASTJAX_VENDOR(EventDisableTiming));
  *event = made;
  return Code(error);
}
int DestroyEvent(Event event) { return Code(FASTJAX_VENDOR(EventDestroy)(ToEvent(event))); }
int RecordEvent(Event event, Stream stream) {
  return Code(FASTJAX_VENDOR(EventRecord)(ToEvent(event), ToStream(stream)));
}
int WaitEvent(Stream stream, Event event) {
  return Code(FASTJAX_VENDOR(StreamWaitEvent)(ToStream(stream), ToEvent(event), 0));
}
int SynchronizeEvent(Event event) { return Code(FASTJAX_VENDOR(EventSynchronize)(ToEvent(event))); }
int QueryEvent(Event event, int* reached) {
  const VendorError error = FASTJAX_VENDOR(EventQuery)(ToEvent(event));
  *reached = error == FASTJAX_VENDOR(Success) ? 1 : 0;
  if (error != FASTJAX_VENDOR(ErrorNotReady)) return Code(error);
  ForgetError();
  return 0;
}

int Copy(void* dst, const void* src, size_t bytes, Stream stream) {
  return Code(FASTJAX_VENDOR(MemcpyAsync)(dst, src, bytes, FASTJAX_VENDOR(MemcpyDefault), ToStream(stream)));
}
int CallHost(Stream stream, void (*function)(void*), void* data) {
  return Code(FASTJAX_VENDOR(LaunchHostFunc)(ToStream(stream), function, data));
}

template <typename... Bodies>
int LoadAll() {
  VendorError error = FASTJAX_VENDOR(Success);
  static_cast<void>(((error = LoadKernel<kBlockThreads, Bodies>(), error == FASTJAX_VENDOR(Success)) && ...));
  return Code(error);
}

struct MoveBody {
  const Move* moves;
  int64_t count;
  int64_t end;
  FASTJAX_DEVICE void operator()(const Worker& worker) const { MoveRows(worker, moves, count, end); }
};

// The list by value: a parameter of the kernel.
struct MoveFewBody {
  int64_t count;
  int64_t end;
  Move moves[kFewMoves];
  FASTJAX_DEVICE void operator()(const Worker& worker) const { MoveRows(worker, moves, count, end); }
};
static_assert(sizeof(MoveFewBody) + 256 <= 4096, "kernels have 4 KiB of parameters, of which HIP takes 256 bytes");

struct GatherBody {
  const Gather* gathers;
  int64_t count;
  int64_t end;
  int64_t row_bytes;
  FASTJAX_DEVICE void operator()(const Worker& worker) const { GatherRows(worker, gathers, count, end, row_bytes); }
};

template <typename Element, typename Sum>
struct IndexedSumBody {
  IndexedSum sum;
  FASTJAX_DEVICE void operator()(const Worker& worker) const { SumIndexed<Element, Sum>(worker, sum); }
};

struct FetchBody {
  FetchList list;
  FASTJAX_DEVICE void operator()(const Worker& worker) const { Fetch(worker, list); }
};

int LoadKernels() {
  return LoadAll<MoveBody, MoveFewBody, GatherBody, IndexedSumBody<F16, F16>, IndexedSumBody<F16, F32>,
                 IndexedSumBody<BF16, BF16>, IndexedSumBody<BF16, F32>, IndexedSumBody<F32, F32>,
                 IndexedSumBody<F64, F64>, FetchBody>();
}

int LaunchMoveRows(const Move* moves, int64_t count, int64_t end, int32_t blocks, Stream stream) {
  if (end == 0) return 0;
  return Code(Launch<kBlockThreads>(blocks, ToStream(stream), MoveBody{moves, count, end}));
}

int LaunchMoveFew(const Move* moves, int64_t count, int64_t end, int32_t blocks, Stream stream) {
  if (count > kFewMoves) return Code(FASTJAX_VENDOR(ErrorInvalidValue));
  if (end == 0) return 0;
  MoveFewBody body{count, end, {}};
  std::copy(moves, moves + count, body.moves);
  return Code(Launch<kBlockThreads>(blocks, ToStream(stream), body));
}

int LaunchGatherRows(const Gather* gathers, int64_t count, int64_t end, int64_t row_bytes, int32_t blocks,
                     Stream stream) {
  if (end == 0) return 0;
  return Code(Launch<kBlockThreads>(blocks, ToStream(stream), GatherBody{gathers, count, end, row_bytes}));
}

int LaunchSumIndexed(SumTypes types, const IndexedSum* sum, int32_t blocks, Stream stream) {
  const bool empty = sum->rows == 0 || sum->elements == 0 || sum->num_slices == 0;
  VendorError error = FASTJAX_VENDOR(ErrorInvalidValue);
  VisitSum(types, [&](auto element, auto wide) {
    const IndexedSumBody<decltype(element), decltype(wide)> body{*sum};
    error = empty ? FASTJAX_VENDOR(Success) : Launch<kBlockThreads>(blocks, ToStream(stream), body);
  });
  return Code(error);
}

int LaunchFetch(const FetchList* list, int32_t blocks, Stream stream) {
  if (list->count == 0) return 0;
  return Code(Launch<kBlockThreads>(blocks, ToStream(stream), FetchBody{*list}));
}

constexpr Driver kDriver = {kDriverVersion,
                            FASTJAX_VENDOR_NAME,
                            ErrorText,
                            CountDevices,
                            GetDevice,
                            SetDevice,
                            CountMultiprocessors,
                            EnablePeer,
                            Malloc,
                            Free,
                            MallocPinned,
                            FreePinned,
                            CreateStream,
                            DestroyStream,
                            SynchronizeStream,
                            CreateEvent,
                            DestroyEvent,
                            RecordEvent,
                            WaitEvent,
                            SynchronizeEvent,
                            QueryEvent,
                            Copy,
                            CallHost,
                            LoadKernels,
                            LaunchMoveRows,
                            LaunchMoveFew,
                            LaunchGatherRows,
                            LaunchSumIndexed,
                            LaunchFetch};

}  // namespace
}  // namespace fastjax::kernels

const fastjax::kernels::Driver* fastjax_gpu_driver() { return &fastjax::kernels::kDriver; }
