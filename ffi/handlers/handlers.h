// Declares the XLA FFI handlers, by stage of execution.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include <string_view>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

// A target of custom calls, and the functions that XLA calls for it. Calls without state are not instantiated.
struct Target {
  const char* name;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

// Those of CPU programs, whose devices may emulate GPUs.
std::vector<Target> CpuTargets(bool emulates);
// Those of "cuda" or "rocm" programs.
std::vector<Target> GpuTargets(std::string_view platform);

Target LevelTarget();
Target DealTarget();
Target EmulatedDoneTarget();
// Does nothing, on all platforms. Benchmarks measure by it what it costs to launch a call.
Target EmptyTarget();

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
