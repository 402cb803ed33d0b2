#include <cstring>
#include <memory>
#include <utility>

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

ffi::Error DoNothing(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

auto BindValue() { return ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs(); }

XLA_FFI_DEFINE_HANDLER(kEmpty, DoNothing, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(kPass, Pass, BindValue());
XLA_FFI_DEFINE_HANDLER(kPassLater, PassLater, BindValue());

}  // namespace

XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame) { return kEmpty(frame); }
XLA_FFI_Error* DoneExecute(XLA_FFI_CallFrame* frame) { return kPass(frame); }
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame) { return kPassLater(frame); }

}  // namespace fastjax::handlers
