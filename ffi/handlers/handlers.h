// Declares the XLA FFI handlers, by stage of execution.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include <cstdint>
#include <string_view>
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

// On GPUs; calls without state are of one vendor's.
Bundle GpuPlan();
Bundle GpuExchange();

XLA_FFI_Handler* GpuDone(std::string_view platform);
XLA_FFI_Handler* GpuAfter(std::string_view platform);

// Return their first operand in place. XLA calls them once the others have been computed.
XLA_FFI_Error* DoneExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame);

// For tests: takes the record of Turns.
std::vector<std::pair<int64_t, int32_t>> TakeRecordOfTurns();

// Does nothing. Benchmarks measure by it what it costs to launch a call.
XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
