// Declares the XLA FFI handlers, by stage of execution.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

// The functions that XLA calls for one target.
struct Bundle {
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

// On CPUs.
Bundle Plan();
Bundle Exchange();
Bundle Start();
Bundle Level();
Bundle Deal();

// On CPUs that emulate GPUs.
Bundle EmulatedPlan();
Bundle EmulatedExchange();
XLA_FFI_Error* EmulatedDoneExecute(XLA_FFI_CallFrame* frame);

// On GPUs, of both vendors.
Bundle GpuPlan();
Bundle GpuExchange();

// Have XLA's stream wait for the rows of an exchange that was started, and return them in place.
XLA_FFI_Error* CudaDoneExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* RocmDoneExecute(XLA_FFI_CallFrame* frame);

// Return their first operand in place. XLA calls them once the others have been computed.
XLA_FFI_Error* DoneExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaAfterExecute(XLA_FFI_CallFrame* frame);  // copies on the stream where it is not in place
XLA_FFI_Error* RocmAfterExecute(XLA_FFI_CallFrame* frame);

// For tests: takes the record of Turns.
std::vector<std::pair<int64_t, int32_t>> TakeRecordOfTurns();

// Does nothing. Benchmarks measure by it what it costs to launch a call.
XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
