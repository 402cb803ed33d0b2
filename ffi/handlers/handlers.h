// The XLA FFI handlers, by stage.
#ifndef FASTJAX_HANDLERS_HANDLERS_H_
#define FASTJAX_HANDLERS_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace fastjax::handlers {

// What XLA calls of one target.
struct Bundle {
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

// On CPUs.
Bundle Plan();
Bundle Exchange();
Bundle IndexedExchange();  // of rows that indices name
Bundle Stage();            // the operands of an exchange, so that XLA has no more to keep them
Bundle IndexedStage();     // the same, with indices
Bundle StagedExchange();   // an exchange of operands that were staged
Bundle IndexedStagedExchange();
Bundle PlanExchange();  // an exchange that plans itself: the devices meet once instead of twice

// On GPUs, of both vendors.
Bundle GpuPlan();
Bundle GpuExchange();
Bundle GpuPlanExchange();
Bundle GpuLoopback();  // all ranks of an exchange on one device
Bundle GpuLoopbackPlan();

// On CPUs that play GPUs.
Bundle EmulatedPlan();
Bundle EmulatedExchange();
Bundle EmulatedPlanExchange();
Bundle EmulatedLoopback();
Bundle EmulatedLoopbackPlan();

// Gives `value` out once there is `earlier`, which XLA waits for since it is an operand. Moves nothing.
XLA_FFI_Error* AfterExecute(XLA_FFI_CallFrame* frame);

// Does nothing: the yardstick for what launching any call costs.
XLA_FFI_Error* EmptyExecute(XLA_FFI_CallFrame* frame);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_HANDLERS_H_
