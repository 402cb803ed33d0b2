// The handlers of CUDA and ROCm programs. They wait once, for offsets and sizes, and put the rest on XLA's stream. XLA
// must not capture them in command buffers, since the work depends on these values.
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "backends/gpu/device/call_memory.h"
#include "handlers/gpu_bundles.h"

namespace fastjax::handlers {
namespace {

using gpu::Caller;

// A device's stream, and its memory.
struct DeviceContext {
  void* stream;
  ffi::ScratchAllocator scratch;
  int32_t ordinal;
};

}  // namespace
}  // namespace fastjax::handlers

template <>
struct xla::ffi::CtxDecoding<fastjax::handlers::DeviceContext> {
  using Type = fastjax::handlers::DeviceContext;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    auto stream = CtxDecoding<PlatformStream<void*>>::Decode(api, ctx, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, ctx, diagnostic);
    const auto ordinal = CtxDecoding<DeviceOrdinal>::Decode(api, ctx, diagnostic);
    if (!stream.has_value() || !scratch.has_value() || !ordinal.has_value()) return std::nullopt;
    return Type{*stream, std::move(*scratch), *ordinal};
  }
};

namespace fastjax::handlers {
namespace {

// Waits for the completion that start(completion) is given, and returns its status. The backend bounds every wait.
template <typename Start>
Status Wait(Start start) {
  auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> outcome = told->get_future();
  start([told](const Status& status) { told->set_value(status); });
  return outcome.get();
}

// XLA runs a device's program on a thread whose current device it is, or says which it is.
Status FindDevice(const gpu::Gpu& gpu, const DeviceContext& context, int32_t* device) {
  const Status status = gpu.Check(gpu.driver().GetDevice(device), context.ordinal, "be asked for");
  if (!status.ok() || *device == kernels::kNoDevice) *device = context.ordinal;
  return status;
}

// `own`: where the call has its memory from, if XLA's is not for its stream.
Caller CallerOf(DeviceContext* context, int32_t device, gpu::CallMemory* own) {
  return {context->stream, device,
          [context, own](size_t bytes) {
            if (own != nullptr) return own->Allocate(bytes);
            // The largest alignment that XLA accepts. Its allocator aligns by 256.
            constexpr size_t kAlignment = 16;
            return static_cast<std::byte*>(context->scratch.Allocate(bytes, kAlignment).value_or(nullptr));
          },
          own != nullptr};
}

struct XlaGpu {
  using Context = DeviceContext;
  using Outcome = ffi::Error;
  static constexpr const char* kExchangeType = "fastjax_gpu_exchange_site_v1";
  static constexpr const char* kPlanType = "fastjax_gpu_plan_site_v1";
  static constexpr const char* kLoopbackPlanType = "fastjax_gpu_loopback_plan_site_v1";

  template <typename Call, typename Site, typename Buffers>
  static ffi::Error Run(Site* state, ffi::RunId run, DeviceContext context, const Buffers& buffers) {
    state->handed_over.Receive();
    int32_t device = 0;
    Status status = FindDevice(*state->gpu, context, &device);
    // Made before any object that calls the driver, and destroyed after all of them.
    gpu::DeviceScope scope(*state->gpu);
    if (status.ok()) status = scope.Choose(device);
    gpu::CallMemory own(state->gpu.get(), device, context.stream);
    Call call(state, CallerOf(&context, device, state->gpu_stream ? &own : nullptr), context.ordinal);
    if (status.ok()) status = Guarded([&] { return call.Load(buffers); });
    return ToError(Wait([&](const Completion& done) { call.Start(run.run_id, status, done); }));
  }
};

}  // namespace

Bundle GpuPlan() { return GpuBundles<XlaGpu>::Plan(); }
Bundle GpuExchange() { return GpuBundles<XlaGpu>::Exchange(); }
Bundle GpuIndexedExchange() { return GpuBundles<XlaGpu>::IndexedExchange(); }
Bundle GpuPlanExchange() { return GpuBundles<XlaGpu>::PlanExchange(); }
Bundle GpuLoopback() { return GpuBundles<XlaGpu>::Loopback(); }
Bundle GpuLoopbackPlan() { return GpuBundles<XlaGpu>::LoopbackPlan(); }

}  // namespace fastjax::handlers
