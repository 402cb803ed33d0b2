// The XLA FFI handlers, by stage.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include <cstdint>

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

XLA_FFI_Error* PlanInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* PlanExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* ExchangeInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* ExchangeExecute(XLA_FFI_CallFrame* frame);

// An exchange that plans itself: the devices meet once instead of twice.
XLA_FFI_Error* PlanExchangeInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* PlanExchangeExecute(XLA_FFI_CallFrame* frame);

// Does nothing: the yardstick for what launching any call costs.
XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame);

// How many plans this process has made for traced programs.
int64_t PlansMade();

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
