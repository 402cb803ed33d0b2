#include <cstring>
#include <memory>
#include <utility>

#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "runtime/completer.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

// XLA was asked to give value and result one buffer; it is free not to.
ffi::Error Pass(ffi::AnyBuffer value, ffi::AnyBuffer /*earlier*/, ffi::Result<ffi::AnyBuffer> result) {
  if (result->untyped_data() != value.untyped_data()) {
    std::memcpy(result->untyped_data(), value.untyped_data(), value.size_bytes());
  }
  return ffi::Error::Success();
}

// The thread of XLA's that called this may have more to begin, which would wait for as long as what follows runs. It
// runs what follows all the same if the other thread completes the future before XLA has looked at it. Waking a thread
// takes longer than that, unless the host is busy.
ffi::Future PassElsewhere(ffi::AnyBuffer value, ffi::AnyBuffer earlier, ffi::Result<ffi::AnyBuffer> result) {
  if (ffi::Error error = Pass(value, earlier, result); error.failure()) return Failed(std::move(error));
  ffi::Promise promise;
  ffi::Future future(promise);
  Completer::Get().Run([done = std::make_shared<ffi::Promise>(std::move(promise))] { done->SetAvailable(); });
  return future;
}

// A GPU's handler would have to copy on the stream, so it refuses instead.
ffi::Error PassInPlace(ffi::AnyBuffer value, ffi::AnyBuffer /*earlier*/, ffi::Result<ffi::AnyBuffer> result) {
  if (result->untyped_data() == value.untyped_data()) return ffi::Error::Success();
  return ffi::Error::Internal(
      "fastjax: XLA was to keep the operand and the result of fastjax_after_v1 in one buffer, and gave them two. "
      "Please report this with the versions of jax and fastjax; one chunk (moe.layer(..., chunks=1)) does without it.");
}

XLA_FFI_DEFINE_HANDLER(kAfter, Pass, BindOperands<AfterOperands>(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kDetachedAfter, PassElsewhere, BindOperands<AfterOperands>(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kGpuAfter, PassInPlace, BindOperands<AfterOperands>(ffi::Ffi::Bind()));

}  // namespace

XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame) { return kAfter(frame); }
XLA_FFI_Error* DetachedAfterExecute(XLA_FFI_CallFrame* frame) { return kDetachedAfter(frame); }
XLA_FFI_Error* GpuAfterExecute(XLA_FFI_CallFrame* frame) { return kGpuAfter(frame); }

}  // namespace fastjax::handlers
