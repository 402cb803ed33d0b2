// Declares how CPU devices that emulate GPUs execute calls, for tests of all of the GPU path but the GPU. XLA's CPU
// devices must not block, so handlers return futures, which other threads complete.
#ifndef FASTJAX_HANDLERS_EMULATED_CALLS_H_
#define FASTJAX_HANDLERS_EMULATED_CALLS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "handlers/decode.h"
#include "handlers/gpu_calls.h"

namespace fastjax::handlers {

// Finds a device and its stream.
Status FindEmulatedCaller(gpu::Gpu* gpu, int32_t ordinal, gpu::Caller* caller);
// Completes `promise` once the stream has executed what is on it now. Its owner lives until then.
void CompleteInOrder(const gpu::Gpu& gpu, const gpu::Caller& caller, const Status& status,
                     const std::shared_ptr<ffi::Promise>& promise);

// Owns what a call needs until its stream has executed it.
template <typename Site>
struct EmulatedRun {
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::unique_ptr<typename Site::Call> call;
  ffi::Promise promise;
};

template <typename Site>
ffi::Future RunEmulated(Site* state, ffi::RunId run, int32_t ordinal, const Buffers& buffers) {
  auto running = std::make_shared<EmulatedRun<Site>>();
  gpu::Caller caller;
  Status loaded = FindEmulatedCaller(state->gpu.get(), ordinal, &caller);
  caller.allocate = [memory = &running->memory](size_t bytes) {
    return memory->emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  };
  running->call = std::make_unique<typename Site::Call>(state, caller, ordinal);
  if (loaded.ok()) loaded = Guarded([&] { return running->call->Load(buffers); });
  ffi::Future future(running->promise);
  running->call->Start(run.run_id, loaded, [running, run, gpu = state->gpu](const Status& status) {
    if (!status.ok()) gpu->DropFlights(running->call->caller().device, run.run_id);
    CompleteInOrder(*gpu, running->call->caller(), status, {running, &running->promise});
  });
  return future;
}

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_EMULATED_CALLS_H_
