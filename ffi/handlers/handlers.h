// Declares the XLA FFI handlers, by stage of execution.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include <string_view>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

// The functions that XLA calls for one target. Calls without state are not instantiated.
struct Handlers {
  const char* target;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

// Those of CPU programs, whose devices may emulate GPUs.
std::vector<Handlers> CpuHandlers(bool emulates);
// Those of "cuda" or "rocm" programs.
std::vector<Handlers> GpuHandlers(std::string_view platform);

Handlers LevelHandlers();
Handlers DealHandlers();
XLA_FFI_Error* EmulatedDone(XLA_FFI_CallFrame* frame);
// Does nothing, on all platforms. Benchmarks measure by it what it costs to launch a call.
XLA_FFI_Error* Empty(XLA_FFI_CallFrame* frame);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
