// Memory for calls on a stream that is not the one of XLA's memory: nobody else gets it while that stream may use it.
#include "backends/gpu/device/call_memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/gpu/device/gpu.h"
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/gpu_rig.h"

namespace fastjax::test {
namespace {

using gpu::CallMemory;
using gpu::Gpu;

struct Stream {
  Stream() { CHECK_EQ(fastjax_gpu_driver()->CreateStream(&stream), 0); }
  ~Stream() { fastjax_gpu_driver()->DestroyStream(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Compute(Computation* computation) const {
    const auto run = [](void* data) { static_cast<Computation*>(data)->Run(); };
    CHECK_EQ(fastjax_gpu_driver()->CallHost(stream, run, computation), 0);
  }

  kernels::Stream stream = nullptr;
};

// What one call of the stream gets.
std::byte* Allocated(Gpu* gpu, const Stream& stream, size_t bytes) {
  return CallMemory(gpu, 0, stream.stream).Allocate(bytes);
}

// A call has ended on the host, and its stream is still at work on its memory.
void TestReuse() {
  constexpr size_t kBytes = 100000;
  Computation computation;
  const Stream apart, other;
  Gpu gpu(fastjax_gpu_driver());
  apart.Compute(&computation);
  std::byte* const first = Allocated(&gpu, apart, kBytes);
  CHECK(first != nullptr);
  std::byte* const second = Allocated(&gpu, other, kBytes);
  CHECK(second != nullptr && second != first);
  CHECK_EQ(fastjax_gpu_driver()->SynchronizeStream(other.stream), 0);
  CHECK(Allocated(&gpu, other, kBytes) == second);  // that stream has done its work
  computation.LetGo();
  CHECK_EQ(fastjax_gpu_driver()->SynchronizeStream(apart.stream), 0);
  CHECK_EQ(fastjax_gpu_driver()->SynchronizeStream(other.stream), 0);
  CallMemory memory(&gpu, 0, apart.stream);
  std::byte* const third = memory.Allocate(kBytes);
  std::byte* const fourth = memory.Allocate(1);
  CHECK((third == first && fourth == second) || (third == second && fourth == first));
  CHECK(memory.Allocate(kBytes) != third);  // one call does not get it twice
}

// A device without memory says so, and what it got before is kept.
void TestNoneLeft() {
  kernels::Driver driver = *fastjax_gpu_driver();
  static bool full = false;
  driver.Malloc = [](void** memory, size_t bytes) { return full ? 2 : fastjax_gpu_driver()->Malloc(memory, bytes); };
  const Stream stream;
  Gpu gpu(&driver);
  std::byte* const first = Allocated(&gpu, stream, 1000);
  CHECK_EQ(fastjax_gpu_driver()->SynchronizeStream(stream.stream), 0);
  full = true;
  CHECK(Allocated(&gpu, stream, size_t{1} << 20) == nullptr);
  CHECK(Allocated(&gpu, stream, 1000) == first);
}

}  // namespace
}  // namespace fastjax::test

int main() {
  using namespace fastjax::test;
  fastjax_gpu_driver()->SetDevice(0);
  TestReuse();
  TestNoneLeft();
  CheckNoMisuse();
  return fastjax::test::Finish("gpu_call_memory_test");
}
