#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

ffi::Error Check(ffi::AnyBuffer value, ffi::AnyBuffer /*earlier*/, ffi::Result<ffi::AnyBuffer> result) {
  if (result->untyped_data() == value.untyped_data()) return ffi::Error::Success();
  return ffi::Error::Internal("fastjax: the result of `after` is not in the memory of its value");
}

XLA_FFI_DEFINE_HANDLER(kAfter, Check, BindOperands<AfterOperands>(ffi::Ffi::Bind()));

}  // namespace

XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame) { return kAfter(frame); }

}  // namespace fastjax::handlers
