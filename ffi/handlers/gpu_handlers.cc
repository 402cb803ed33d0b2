// The handlers of CUDA and ROCm programs. They wait once, for offsets and sizes, and put the rest on XLA's stream. XLA
// must not capture them in command buffers, since the work depends on these values.
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/gpu/device/driver_library.h"
#include "handlers/decode.h"
#include "handlers/gpu_calls.h"

namespace fastjax::handlers {
namespace {

using gpu::Caller;

// Waits for the completion that start(completion) is given, and returns its status. The backend bounds every wait.
template <typename Start>
Status Wait(Start start) {
  auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> outcome = told->get_future();
  start([told](const Status& status) { told->set_value(status); });
  return outcome.get();
}

ffi::ErrorOr<std::unique_ptr<GpuExchangeSite>> InstantiateExchange(ffi::Dictionary attrs) {
  return MakeSite<GpuExchangeSite>(DecodeExchangeCall(attrs), OpenGpuExchange);
}

ffi::ErrorOr<std::unique_ptr<GpuPlanSite>> InstantiatePlan(ffi::Dictionary attrs) {
  return MakeSite<GpuPlanSite>(DecodeAttributes(GetContract().plan, attrs), OpenGpuPlan);
}

template <typename Site>
ffi::Error Execute(Site* state, ffi::RunId run, void* stream, ffi::ScratchAllocator scratch, int32_t ordinal,
                   ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  const auto buffers = state->Take(args, *result);
  if (!buffers.has_value()) return ToError(UnexpectedOperands());
  int32_t device = 0;
  Status status = FindDevice(*state->gpu, ordinal, &device);
  // Made before any object that calls the driver, and destroyed after all of them.
  gpu::DeviceScope scope(*state->gpu);
  if (status.ok()) status = scope.Choose(device);
  const auto allocate = [&scratch](size_t bytes) {
    constexpr size_t kAlignment = 16;  // the largest that XLA accepts; its allocator aligns by 256
    return static_cast<std::byte*>(scratch.Allocate(bytes, kAlignment).value_or(nullptr));
  };
  typename Site::Call call(state, Caller{stream, device, allocate}, ordinal);
  if (status.ok()) status = Guarded([&] { return call.Load(*buffers); });
  status = Wait([&](const Completion& done) { call.Start(run.run_id, status, done); });
  if (!status.ok()) state->gpu->DropFlights(device, run.run_id);
  return ToError(status);
}

constexpr char kCuda[] = "cuda";
constexpr char kRocm[] = "rocm";

ffi::ErrorOr<std::shared_ptr<gpu::Gpu>> Open(const char* platform) {
  std::string wrong;
  std::shared_ptr<gpu::Gpu> gpu = gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return ffi::Unexpected(ffi::Error::Internal("fastjax: " + wrong + "."));
  return gpu;
}

// Has XLA's stream wait for the rows of an exchange that was started, and returns them in place.
template <const char* platform>
ffi::Error Done(void* stream, int32_t ordinal, ffi::AnyBuffer rows, ffi::RemainingArgs kept,
                ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  const auto opened = Open(platform);
  if (!opened.has_value()) return opened.error();
  gpu::Gpu* const gpu = opened->get();
  int32_t device = 0;
  Status status = FindDevice(*gpu, ordinal, &device);
  if (status.ok()) status = PassRows(gpu, Caller{stream, device}, rows, kept, *result);
  return ToError(status);
}

// XLA:GPU fuses a slice that is the operand into the call, and then forgets that the result was to be in its place
// (dynamic-slice fusions, seen with jaxlib 0.11.2). So the copy goes on XLA's stream.
template <const char* platform>
ffi::Error After(void* stream, int32_t ordinal, ffi::AnyBuffer value, ffi::RemainingArgs /*earlier*/,
                 ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  if (result->size_bytes() != value.size_bytes()) return ToError(UnexpectedOperands());
  if (result->untyped_data() == value.untyped_data()) return ffi::Error::Success();
  const auto gpu = Open(platform);
  if (!gpu.has_value()) return gpu.error();
  const int code = (*gpu)->driver().Copy(result->untyped_data(), value.untyped_data(), value.size_bytes(), stream);
  return ToError((*gpu)->Check(code, ordinal, "copy rows that come after others"));
}

auto BindPass() {
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
      .template Ctx<ffi::PlatformStream<void*>>()
      .template Ctx<ffi::ScratchAllocator>()
      .template Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .Attrs();
}

XLA_FFI_DEFINE_HANDLER(kInstantiateExchange, InstantiateExchange, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiatePlan, InstantiatePlan, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteExchange, Execute<GpuExchangeSite>, BindExecute<GpuExchangeSite>());
XLA_FFI_DEFINE_HANDLER(kExecutePlan, Execute<GpuPlanSite>, BindExecute<GpuPlanSite>());

XLA_FFI_DEFINE_HANDLER(kCudaDone, Done<kCuda>, BindPass());
XLA_FFI_DEFINE_HANDLER(kRocmDone, Done<kRocm>, BindPass());
XLA_FFI_DEFINE_HANDLER(kCudaAfter, After<kCuda>, BindPass());
XLA_FFI_DEFINE_HANDLER(kRocmAfter, After<kRocm>, BindPass());

}  // namespace

std::vector<Target> GpuTargets(std::string_view platform) {
  const Contract& contract = GetContract();
  const bool cuda = platform == kCuda;
  return {TargetOf<GpuPlanSite, kInstantiatePlan, kExecutePlan>(contract.plan),
          TargetOf<GpuExchangeSite, kInstantiateExchange, kExecuteExchange>(contract.exchange),
          cuda ? TargetOf<kCudaDone>(contract.done) : TargetOf<kRocmDone>(contract.done),
          cuda ? TargetOf<kCudaAfter>(contract.after) : TargetOf<kRocmAfter>(contract.after), EmptyTarget()};
}

}  // namespace fastjax::handlers
