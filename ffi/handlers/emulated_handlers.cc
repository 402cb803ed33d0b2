// The handlers of CPU programs whose devices emulate GPUs, for tests of all of the GPU path but the GPU. XLA's CPU
// devices must not block, so handlers return futures, which other threads complete.
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handlers/gpu_bundles.h"
#include "runtime/completer.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

using gpu::Caller;
using gpu::Gpu;

// Owns what a call needs until its stream has executed it.
template <typename Call>
struct Running {
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::unique_ptr<Call> call;
  ffi::Promise promise;

  std::byte* Allocate(size_t bytes) {
    memory.push_back(std::make_unique<std::byte[]>(bytes));
    return memory.back().get();
  }
};

// Owns the streams of this process's emulated devices, by device. Each is made when it is first asked for.
struct EmulatedStreams {
  std::mutex mutex;
  std::vector<kernels::Stream> streams;
};

// A device and its stream.
Status FindCaller(const Gpu& gpu, int32_t ordinal, Caller* caller) {
  auto& state = ProcessState<EmulatedStreams>();
  int devices = 1;
  gpu.driver().CountDevices(&devices);
  caller->device = ordinal % devices;
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.streams.resize(static_cast<size_t>(devices));
  kernels::Stream& stream = state.streams[static_cast<size_t>(caller->device)];
  if (stream == nullptr) {
    gpu::DeviceScope scope(gpu);
    Status status = scope.Choose(caller->device);
    if (status.ok()) status = gpu.Check(gpu.driver().CreateStream(&stream), caller->device, "make a stream");
    if (!status.ok()) return status;
  }
  caller->stream = stream;
  return Status::Ok();
}

// Completes the call once its stream has executed what is on it now.
template <typename Call>
void CompleteInOrder(const Gpu& gpu, const std::shared_ptr<Running<Call>>& running, const Status& status) {
  using Kept = std::shared_ptr<Running<Call>>;
  if (!status.ok()) return running->promise.SetError(ToError(status));
  auto kept = std::make_unique<Kept>(running);
  const auto complete = [](void* data) {
    const std::unique_ptr<Kept> last(static_cast<Kept*>(data));
    Completer::Get().Run([own = std::move(*last)] { own->promise.SetAvailable(); });
  };
  const int code = gpu.driver().CallHost(running->call->caller().stream, complete, kept.get());
  if (code == 0) static_cast<void>(kept.release());
  if (code != 0) running->promise.SetError(ToError(gpu.Check(code, running->call->caller().device, "call back")));
}

struct EmulatedPlatform {
  using Context = ffi::DeviceOrdinal;
  using Outcome = ffi::Future;
  static constexpr const char* kExchangeType = "fastjax_emulated_exchange_site_v1";
  static constexpr const char* kPlanType = "fastjax_emulated_plan_site_v1";
  static constexpr const char* kLoopbackPlanType = "fastjax_emulated_loopback_plan_site_v1";

  template <typename Call, typename Site, typename Buffers>
  static ffi::Future Run(Site* state, ffi::RunId run, int32_t ordinal, const Buffers& buffers) {
    state->handed_over.Receive();
    auto running = std::make_shared<Running<Call>>();
    Caller caller;
    Status loaded = FindCaller(*state->gpu, ordinal, &caller);
    caller.allocate = [raw = running.get()](size_t bytes) { return raw->Allocate(bytes); };
    running->call = std::make_unique<Call>(state, caller, ordinal);
    if (loaded.ok()) loaded = Guarded([&] { return running->call->Load(buffers); });
    ffi::Future future(running->promise);
    running->call->Start(run.run_id, loaded,
                         [running, gpu = state->gpu](const Status& status) { CompleteInOrder(*gpu, running, status); });
    return future;
  }
};

}  // namespace

Bundle EmulatedPlan() { return GpuBundles<EmulatedPlatform>::Plan(); }
Bundle EmulatedExchange() { return GpuBundles<EmulatedPlatform>::Exchange(); }
Bundle EmulatedIndexedExchange() { return GpuBundles<EmulatedPlatform>::IndexedExchange(); }
Bundle EmulatedPlanExchange() { return GpuBundles<EmulatedPlatform>::PlanExchange(); }
Bundle EmulatedLoopback() { return GpuBundles<EmulatedPlatform>::Loopback(); }
Bundle EmulatedLoopbackPlan() { return GpuBundles<EmulatedPlatform>::LoopbackPlan(); }

}  // namespace fastjax::handlers
