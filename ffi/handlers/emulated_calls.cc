#include "handlers/emulated_calls.h"

#include <mutex>
#include <string>

#include "backends/gpu/device/driver_library.h"
#include "handlers/handlers.h"
#include "runtime/completer.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

using gpu::Caller;
using gpu::Gpu;

// Owns the streams of this process's emulated devices, by device. Each is made when it is first asked for.
struct EmulatedStreams {
  std::mutex mutex;
  std::vector<kernels::Stream> streams;
};

}  // namespace

Status FindEmulatedCaller(const Gpu& gpu, int32_t ordinal, Caller* caller) {
  auto& state = ProcessState<EmulatedStreams>();
  int devices = 1;
  gpu.driver().CountDevices(&devices);
  caller->device = ordinal % devices;
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.streams.resize(static_cast<size_t>(devices));
  kernels::Stream& stream = state.streams[static_cast<size_t>(caller->device)];
  if (stream == nullptr) {
    gpu::DeviceScope scope(gpu);
    Status status = scope.Choose(caller->device);
    if (status.ok()) status = gpu.Check(gpu.driver().CreateStream(&stream), caller->device, "make a stream");
    if (!status.ok()) return status;
  }
  caller->stream = stream;
  return Status::Ok();
}

void CompleteInOrder(const Gpu& gpu, const Caller& caller, const Status& status, const std::shared_ptr<void>& kept,
                     ffi::Promise* promise) {
  if (!status.ok()) return promise->SetError(ToError(status));
  struct Last {
    std::shared_ptr<void> kept;
    ffi::Promise* promise;
  };
  auto last = std::make_unique<Last>(Last{kept, promise});
  const auto complete = [](void* data) {
    const std::unique_ptr<Last> own(static_cast<Last*>(data));
    Completer::Get().Run([done = std::move(*own)] { done.promise->SetAvailable(); });
  };
  const int code = gpu.driver().CallHost(caller.stream, complete, last.get());
  if (code == 0) {
    [[maybe_unused]] const Last* const given = last.release();
    return;
  }
  promise->SetError(ToError(gpu.Check(code, caller.device, "call back")));
}

namespace {

ffi::Future Done(int32_t ordinal, ffi::AnyBuffer rows, ffi::RemainingArgs kept, ffi::Result<ffi::AnyBuffer> result,
                 ffi::Dictionary /*attrs*/) {
  std::string wrong;
  const std::shared_ptr<Gpu> gpu = gpu::OpenGpu("cpu", &wrong);
  Caller caller;
  Status status = FindEmulatedCaller(*gpu, ordinal, &caller);
  if (status.ok()) status = PassRows(gpu.get(), caller, rows, kept, *result);
  auto promise = std::make_shared<ffi::Promise>();
  ffi::Future future(*promise);
  CompleteInOrder(*gpu, caller, status, promise, promise.get());
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kDone, Done,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

XLA_FFI_Error* EmulatedDoneExecute(XLA_FFI_CallFrame* frame) { return kDone(frame); }

}  // namespace fastjax::handlers
