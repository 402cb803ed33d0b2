#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "backends/gpu/device/driver_library.h"
#include "backends/gpu/device/gpu.h"
#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "runtime/completer.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

// XLA was asked to give value and result one buffer; it is free not to.
ffi::Error Pass(ffi::AnyBuffer value, ffi::RemainingArgs /*earlier*/, ffi::Result<ffi::AnyBuffer> result,
                ffi::Dictionary /*attrs*/) {
  if (result->size_bytes() != value.size_bytes()) return ToError(UnexpectedOperands());
  if (result->untyped_data() != value.untyped_data()) {
    std::memcpy(result->untyped_data(), value.untyped_data(), value.size_bytes());
  }
  return ffi::Error::Success();
}

// The thread of XLA's that called this may have more to begin, which would wait for as long as what follows runs. If
// the call is detached, XLA runs what follows on the other thread that completes the future, unless it is completed
// before XLA has looked at it. Waking a thread takes longer than that, unless the host is busy.
ffi::Future PassLater(ffi::AnyBuffer value, ffi::RemainingArgs earlier, ffi::Result<ffi::AnyBuffer> result,
                      ffi::Dictionary attrs) {
  const auto decoded = DecodeAttributes(GetContract().after, attrs);
  if (!decoded.has_value()) return Failed(decoded.error());
  if (ffi::Error error = Pass(value, earlier, result, attrs); error.failure()) return Failed(std::move(error));
  ffi::Promise promise;
  ffi::Future future(promise);
  if (!decoded->detached) {
    promise.SetAvailable();
    return future;
  }
  Completer::Get().Run([done = std::make_shared<ffi::Promise>(std::move(promise))] { done->SetAvailable(); });
  return future;
}

constexpr char kCuda[] = "cuda";
constexpr char kRocm[] = "rocm";

// XLA:GPU fuses a slice that is the operand into the call, and then forgets that the result was to be in its place
// (dynamic-slice fusions, seen with jaxlib 0.11.2). So the copy goes on XLA's stream.
template <const char* platform>
ffi::Error PassOnStream(void* stream, int32_t ordinal, ffi::AnyBuffer value, ffi::RemainingArgs /*earlier*/,
                        ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  if (result->size_bytes() != value.size_bytes()) return ToError(UnexpectedOperands());
  if (result->untyped_data() == value.untyped_data()) return ffi::Error::Success();
  std::string wrong;
  const std::shared_ptr<gpu::Gpu> gpu = gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return ffi::Error::Internal("fastjax: " + wrong + ".");
  const int code = gpu->driver().Copy(result->untyped_data(), value.untyped_data(), value.size_bytes(), stream);
  return ToError(gpu->Check(code, ordinal, "copy rows that come after others"));
}

ffi::Error DoNothing(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

template <typename Binding>
auto BindValue(Binding binding) {
  return std::move(binding).template Arg<ffi::AnyBuffer>().RemainingArgs().template Ret<ffi::AnyBuffer>().Attrs();
}

auto BindStream() { return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>(); }

XLA_FFI_DEFINE_HANDLER(kEmpty, DoNothing, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(kPass, Pass, BindValue(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kPassLater, PassLater, BindValue(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kCudaPass, PassOnStream<kCuda>, BindValue(BindStream()));
XLA_FFI_DEFINE_HANDLER(kRocmPass, PassOnStream<kRocm>, BindValue(BindStream()));

}  // namespace

XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame) { return kEmpty(frame); }
XLA_FFI_Error* DoneExecute(XLA_FFI_CallFrame* frame) { return kPass(frame); }
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame) { return kPassLater(frame); }
XLA_FFI_Error* CudaAfterExecute(XLA_FFI_CallFrame* frame) { return kCudaPass(frame); }
XLA_FFI_Error* RocmAfterExecute(XLA_FFI_CallFrame* frame) { return kRocmPass(frame); }

}  // namespace fastjax::handlers
