// The handlers of CUDA and ROCm programs. They wait once, for offsets and sizes, and put the rest on XLA's stream. XLA
// must not capture them in command buffers, since the work depends on these values.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backends/gpu/device/driver_library.h"
#include "handlers/exchange_buffers.h"
#include "handlers/gpu_calls.h"

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

Caller CallerOf(DeviceContext* context, int32_t device) {
  return {context->stream, device, [context](size_t bytes) {
            // The largest alignment that XLA accepts. Its allocator aligns by 256.
            constexpr size_t kAlignment = 16;
            return static_cast<std::byte*>(context->scratch.Allocate(bytes, kAlignment).value_or(nullptr));
          }};
}

struct ExchangeSite : GpuExchangeSite {
  static ffi::TypeId id;
  static constexpr const char* kTypeName = "fastjax_gpu_exchange_site_v2";
};
ffi::TypeId ExchangeSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

struct PlanSite : GpuPlanSite {
  static ffi::TypeId id;
  static constexpr const char* kTypeName = "fastjax_gpu_plan_site_v2";
};
ffi::TypeId PlanSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateExchange(ffi::Dictionary attrs) {
  return MakeSite<ExchangeSite>(DecodeExchangeCall(attrs), OpenGpuExchange);
}

ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiatePlan(ffi::Dictionary attrs) {
  return MakeSite<PlanSite>(DecodeAttributes(GetContract().plan, attrs), OpenGpuPlan);
}

template <typename Site>
ffi::Error Execute(Site* state, ffi::RunId run, DeviceContext context, ffi::RemainingArgs args,
                   ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  state->handed_over.Receive();
  const auto buffers = state->operands.Take(args, *result);
  if (!buffers.has_value()) return ToError(UnexpectedOperands());
  int32_t device = 0;
  Status status = FindDevice(*state->gpu, context.ordinal, &device);
  // Made before any object that calls the driver, and destroyed after all of them.
  gpu::DeviceScope scope(*state->gpu);
  if (status.ok()) status = scope.Choose(device);
  typename Site::Call call(state, CallerOf(&context, device), context.ordinal);
  if (status.ok()) status = Guarded([&] { return call.Load(*buffers); });
  status = Wait([&](const Completion& done) { call.Start(run.run_id, status, done); });
  if (!status.ok()) state->gpu->DropFlights(device, run.run_id);
  return ToError(status);
}

constexpr char kCuda[] = "cuda";
constexpr char kRocm[] = "rocm";

template <const char* platform>
ffi::Error Done(void* stream, int32_t ordinal, ffi::AnyBuffer rows, ffi::RemainingArgs kept,
                ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  std::string wrong;
  const std::shared_ptr<gpu::Gpu> gpu = gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return ffi::Error::Internal("fastjax: " + wrong + ".");
  int32_t device = 0;
  Status status = FindDevice(*gpu, ordinal, &device);
  if (status.ok()) status = PassRows(gpu.get(), Caller(stream, device), rows, kept, *result);
  return ToError(status);
}

auto BindDone() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .Attrs();
}

template <typename Site>
auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<Site>>()
      .template Ctx<ffi::RunId>()
      .template Ctx<DeviceContext>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .Attrs();
}

XLA_FFI_DEFINE_HANDLER(kInstantiateExchange, InstantiateExchange, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiatePlan, InstantiatePlan, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteExchange, Execute<ExchangeSite>, BindExecute<ExchangeSite>());
XLA_FFI_DEFINE_HANDLER(kExecutePlan, Execute<PlanSite>, BindExecute<PlanSite>());

XLA_FFI_DEFINE_HANDLER(kCudaDone, Done<kCuda>, BindDone());
XLA_FFI_DEFINE_HANDLER(kRocmDone, Done<kRocm>, BindDone());

}  // namespace

Bundle GpuPlan() { return BundleOf<PlanSite, kInstantiatePlan, kExecutePlan>(); }
Bundle GpuExchange() { return BundleOf<ExchangeSite, kInstantiateExchange, kExecuteExchange>(); }

XLA_FFI_Error* CudaDoneExecute(XLA_FFI_CallFrame* frame) { return kCudaDone(frame); }
XLA_FFI_Error* RocmDoneExecute(XLA_FFI_CallFrame* frame) { return kRocmDone(frame); }

}  // namespace fastjax::handlers
