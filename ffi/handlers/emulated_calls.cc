#include "handlers/emulated_calls.h"

#include <string>

#include "backends/gpu/device/driver_library.h"
#include "handlers/handlers.h"
#include "runtime/completer.h"

namespace fastjax::handlers {

using gpu::Caller;
using gpu::Gpu;

Status FindEmulatedCaller(Gpu* gpu, int32_t ordinal, Caller* caller) {
  int devices = 1;
  gpu->driver().CountDevices(&devices);
  caller->device = ordinal % devices;
  return gpu->SideStream(caller->device, gpu::Beside::kInPlace, &caller->stream);
}

void CompleteInOrder(const Gpu& gpu, const Caller& caller, const Status& status,
                     const std::shared_ptr<ffi::Promise>& promise) {
  if (!status.ok()) return promise->SetError(ToError(status));
  using Last = std::shared_ptr<ffi::Promise>;
  auto last = std::make_unique<Last>(promise);
  const auto complete = [](void* data) {
    const std::unique_ptr<Last> own(static_cast<Last*>(data));
    Completer::Get().Run([done = std::move(*own)] { done->SetAvailable(); });
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
  Status status = FindEmulatedCaller(gpu.get(), ordinal, &caller);
  if (status.ok()) status = PassRows(gpu.get(), caller, rows, kept, *result);
  auto promise = std::make_shared<ffi::Promise>();
  ffi::Future future(*promise);
  CompleteInOrder(*gpu, caller, status, promise);
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kDone, Done,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

Target EmulatedDoneTarget() { return TargetOf<kDone>(GetContract().done); }

}  // namespace fastjax::handlers
