// Calls of GPU programs, on their way from XLA to the transport: what all platforms have in common.
#ifndef FASTJAX_HANDLERS_GPU_CALLS_H_
#define FASTJAX_HANDLERS_GPU_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "handlers/decode.h"
#include "handlers/exchange_buffers.h"
#include "transport/gpu/caller.h"
#include "transport/gpu/fetch.h"
#include "transport/gpu/gpu.h"
#include "transport/transport.h"

namespace fastjax::handlers {

// What the call sites of GPU programs have. Each kind of handler derives a type of its own, since XLA's numbers of
// types are those of one XLA, and a GPU's plugin has an XLA of its own.
struct GpuExchangeSite {
  HandedOver handed_over;
  std::shared_ptr<const transport::CallSite> site;
  std::shared_ptr<transport::gpu::Gpu> gpu;
  std::unique_ptr<transport::Exchange> exchange;
};

struct GpuPlanSite {
  HandedOver handed_over;
  std::shared_ptr<const transport::CallSite> site;
  std::shared_ptr<transport::gpu::Gpu> gpu;
  std::unique_ptr<transport::Counts> counts;
  int64_t table_words = 0;
};

ffi::Error OpenGpuExchange(const ffi::Dictionary& attrs, bool plans, GpuExchangeSite* state, bool loopback = false);
ffi::Error OpenGpuPlan(const ffi::Dictionary& attrs, GpuPlanSite* state);

// Puts a copy of base on the caller's stream. XLA was asked to give result and base one buffer; it is free not to.
transport::Status CopyBase(const transport::gpu::Gpu& gpu, const transport::gpu::Caller& caller,
                           const ffi::AnyBuffer& base, std::byte* result);
// Puts a copy of a table, from pinned memory, on the caller's stream.
transport::Status CopyTable(const transport::gpu::Gpu& gpu, const transport::gpu::Caller& caller,
                            const transport::CallSite& site, const int32_t* words, int32_t* table);

struct PlanBuffers {
  ffi::AnyBuffer send_sizes;
  ffi::AnyBuffer partition;
  Table table;
};

// A call is loaded, which waits for what it must read of the device; started, which ends with a completion; and
// finished, which puts on the stream what comes last. It must live until then.

// One device's exchange.
class GpuExchangeCall {
 public:
  GpuExchangeCall(const GpuExchangeSite& state, transport::gpu::Caller caller)
      : state_(state), caller_(std::move(caller)), fetch_(state.gpu.get()) {}

  // Waits for offsets and sizes.
  ffi::Error Load(const ExchangeBuffers& buffers);
  void Start(int64_t run_id, transport::Completion done) {
    state_.exchange->Start(run_id, partition_, args_, std::move(done));
  }
  transport::Status Finish() { return transport::Status::Ok(); }
  const transport::gpu::Caller& caller() const { return caller_; }

 private:
  const GpuExchangeSite& state_;
  const transport::gpu::Caller caller_;
  transport::gpu::Fetch fetch_;
  transport::ExchangeArgs args_;
  int32_t partition_ = -1;
};

// One device's planning.
class GpuPlanCall {
 public:
  GpuPlanCall(const GpuPlanSite& state, transport::gpu::Caller caller)
      : state_(state), caller_(std::move(caller)), fetch_(state.gpu.get()) {}

  // Waits for the sizes.
  ffi::Error Load(const PlanBuffers& buffers);
  void Start(int64_t run_id, transport::Completion done) {
    state_.counts->Start(run_id, partition_, args_, std::move(done));
  }
  // Puts the copy of the table to the device on the caller's stream.
  transport::Status Finish();
  const transport::gpu::Caller& caller() const { return caller_; }

 private:
  const GpuPlanSite& state_;
  const transport::gpu::Caller caller_;
  transport::gpu::Fetch fetch_;
  transport::CountsArgs args_;
  int32_t* table_ = nullptr;
  int32_t partition_ = -1;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_CALLS_H_
