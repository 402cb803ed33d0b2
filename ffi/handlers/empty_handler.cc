#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

ffi::Error DoNothing(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

XLA_FFI_DEFINE_HANDLER(kEmpty, DoNothing, BindOperands<EmptyOperands>(ffi::Ffi::Bind()));

}  // namespace

XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame) { return kEmpty(frame); }

}  // namespace fastjax::handlers
