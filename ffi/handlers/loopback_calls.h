// Declares calls of exchanges of which one device has all ranks: arrays have a leading dimension of ranks.
#ifndef FASTJAX_HANDLERS_LOOPBACK_CALLS_H_
#define FASTJAX_HANDLERS_LOOPBACK_CALLS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/fetch.h"
#include "exchange/backend.h"
#include "handlers/decode.h"
#include "handlers/gpu_calls.h"

namespace fastjax::handlers {

class LoopbackCall {
 public:
  LoopbackCall(const GpuExchangeSite* state, gpu::Caller caller, int32_t /*ordinal*/)
      : state_(*state), caller_(std::move(caller)), fetch_(state->gpu.get()) {}

  Status Load(const ExchangeBuffers& buffers);
  void Start(int64_t run_id, const Status& loaded, const Completion& done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  bool Decode(const ExchangeBuffers& buffers);
  ExchangeArgs ArgsOf(int32_t rank) const;

  const GpuExchangeSite& state_;
  const gpu::Caller caller_;
  gpu::Fetch fetch_;
  ExchangeArgs all_;  // of rank 0; metadata of all ranks lies behind its own
};

class LoopbackPlanCall {
 public:
  LoopbackPlanCall(const GpuPlanSite* state, gpu::Caller caller, int32_t /*ordinal*/)
      : state_(*state), caller_(std::move(caller)), fetch_(state->gpu.get()) {}

  Status Load(const PlanBuffers& buffers);
  void Start(int64_t run_id, const Status& loaded, const Completion& done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  Status Plan();

  const GpuPlanSite& state_;
  const gpu::Caller caller_;
  gpu::Fetch fetch_;
  IntView sizes_;             // of all ranks
  int32_t* words_ = nullptr;  // on the host
  int32_t* table_ = nullptr;  // on the device
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_LOOPBACK_CALLS_H_
