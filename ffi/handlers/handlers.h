// Declares the XLA FFI handlers, by stage of execution.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

// The functions that XLA calls for one target.
struct Bundle {
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

// On CPUs.
Bundle Plan();
Bundle Gather();  // the counts of all devices, without planning
Bundle Exchange();
Bundle IndexedExchange();  // an exchange of rows that indices name
Bundle Stage();            // copies the operands of an exchange, so that XLA may reuse their memory
Bundle IndexedStage();     // the same, with indices
Bundle StagedExchange();   // an exchange of operands that were staged
Bundle IndexedStagedExchange();
Bundle PlanExchange();  // an exchange that plans itself: the devices meet once instead of twice

// On GPUs, of both vendors.
Bundle GpuPlan();
Bundle GpuExchange();
Bundle GpuIndexedExchange();
Bundle GpuPlanExchange();
Bundle GpuLoopback();  // all ranks of an exchange on one device
Bundle GpuLoopbackPlan();

// On CPUs that emulate GPUs.
Bundle EmulatedPlan();
Bundle EmulatedExchange();
Bundle EmulatedIndexedExchange();
Bundle EmulatedPlanExchange();
Bundle EmulatedLoopback();
Bundle EmulatedLoopbackPlan();

// Returns `value` in place. XLA calls it once `earlier` has been computed, since that is an operand too.
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* DetachedAfterExecute(XLA_FFI_CallFrame* frame);  // what follows runs on a thread of its own
XLA_FFI_Error* CudaAfterExecute(XLA_FFI_CallFrame* frame);      // copies on the stream where it is not in place
XLA_FFI_Error* RocmAfterExecute(XLA_FFI_CallFrame* frame);

// Does nothing. Benchmarks measure by it what it costs to launch a call.
XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
