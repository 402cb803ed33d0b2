// Memory for calls on a stream that is not the one of XLA's memory: nobody else gets it while that stream may use it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/gpu_rig.h"

namespace fastjax::test {
namespace {

using gpu::CallMemory;
using gpu::Gpu;

// What one call of the stream gets.
std::byte* Allocated(Gpu* gpu, const OwnStream& stream, size_t bytes) {
  return CallMemory(gpu, 0, stream.stream).Allocate(bytes);
}

// A call has ended on the host, and its stream is still at work on its memory.
TEST(Reuse) {
  constexpr size_t kBytes = 100000;
  Computation computation;
  const OwnStream apart, other;
  Gpu gpu(fastjax_gpu_driver());
  computation.PutOn(apart.stream);
  std::byte* const first = Allocated(&gpu, apart, kBytes);
  CHECK(first != nullptr);
  std::byte* const second = Allocated(&gpu, other, kBytes);
  CHECK(second != nullptr && second != first);
  other.Synchronize();
  CHECK(Allocated(&gpu, other, kBytes) == second);  // that stream has done its work
  computation.LetGo();
  apart.Synchronize();
  other.Synchronize();
  CallMemory memory(&gpu, 0, apart.stream);
  std::byte* const third = memory.Allocate(kBytes);
  std::byte* const fourth = memory.Allocate(1);
  CHECK((third == first && fourth == second) || (third == second && fourth == first));
  CHECK(memory.Allocate(kBytes) != third);  // one call does not get it twice
}

// What a larger size replaces is freed; sizes that differ by less than an eighth share memory.
TEST(WhatIsKept) {
  static std::vector<size_t> made;
  static int freed = 0;
  kernels::Driver driver = *fastjax_gpu_driver();
  driver.Malloc = [](void** memory, size_t bytes) {
    made.push_back(bytes);
    return fastjax_gpu_driver()->Malloc(memory, bytes);
  };
  driver.Free = [](void* memory) {
    ++freed;
    return fastjax_gpu_driver()->Free(memory);
  };
  constexpr size_t kMiB = size_t{1} << 20;
  const OwnStream stream;
  const auto allocate = [&stream](Gpu* gpu, size_t bytes) {
    CHECK(Allocated(gpu, stream, bytes) != nullptr);
    stream.Synchronize();
  };
  Gpu gpu(&driver);
  allocate(&gpu, 9 * kMiB + 1);
  allocate(&gpu, 10 * kMiB);
  CHECK_EQ(made.size(), size_t{1});
  CHECK_EQ(made[0], 10 * kMiB);
  CHECK_EQ(freed, 0);
  allocate(&gpu, 100 * kMiB);
  CHECK_EQ(made[1], 104 * kMiB);
  CHECK_EQ(freed, 1);
  allocate(&gpu, kMiB);  // in the large one
  CHECK_EQ(made.size(), size_t{2});
}

// Beside what computes, kernels take a part of the GPU unless they are told how many multiprocessors.
TEST(Blocks) {
  kernels::Driver driver = *fastjax_gpu_driver();
  driver.CountMultiprocessors = [](int* count, int /*device*/) {
    *count = 132;
    return 0;
  };
  const auto blocks = [&driver](int32_t multiprocessors, bool beside) {
    Gpu gpu(&driver, multiprocessors);
    int32_t most = 0;
    CHECK(gpu.MaxBlocks(0, beside, &most).ok());
    return most;
  };
  const int32_t each = blocks(1, false);
  CHECK_EQ(blocks(0, false), 132 * each);
  CHECK_EQ(blocks(0, true), 32 * each);
  CHECK_EQ(blocks(48, true), 48 * each);
  CHECK_EQ(blocks(1000, true), 132 * each);
}

// A device without memory says so, and what it got before is kept.
TEST(NoneLeft) {
  kernels::Driver driver = *fastjax_gpu_driver();
  static bool full = false;
  driver.Malloc = [](void** memory, size_t bytes) { return full ? 2 : fastjax_gpu_driver()->Malloc(memory, bytes); };
  const OwnStream stream;
  Gpu gpu(&driver);
  std::byte* const first = Allocated(&gpu, stream, 1000);
  stream.Synchronize();
  full = true;
  CHECK(Allocated(&gpu, stream, size_t{1} << 20) == nullptr);
  CHECK(Allocated(&gpu, stream, 1000) == first);
}

}  // namespace
}  // namespace fastjax::test
