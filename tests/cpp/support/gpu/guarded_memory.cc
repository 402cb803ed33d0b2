#include "support/gpu/guarded_memory.h"

#include <algorithm>

#include "kernels/driver.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

constexpr size_t kBytes = 8 << 20;
constexpr size_t kAlignment = 64;  // an allocator's
constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0x5C};

}  // namespace

GuardedMemory::GuardedMemory(int32_t device) {
  int before = 0;
  fastjax_gpu_driver()->GetDevice(&before);
  fastjax_gpu_driver()->SetDevice(device % 16);
  void* memory = nullptr;
  CHECK_EQ(fastjax_gpu_driver()->Malloc(&memory, kBytes), 0);
  memory_ = static_cast<std::byte*>(memory);
  fastjax_gpu_driver()->SetDevice(before);
  Clear();
}

GuardedMemory::~GuardedMemory() { fastjax_gpu_driver()->Free(memory_); }

void GuardedMemory::Clear() {
  used_ = 0;
  guards_.clear();
  Take(0);
}

// Null when there is no room left, as an allocator would have it.
std::byte* GuardedMemory::Take(size_t bytes) {
  const size_t room = (bytes + kGuard + kAlignment - 1) / kAlignment * kAlignment;
  if (room > kBytes - used_) return nullptr;
  std::byte* const buffer = memory_ + used_;
  guards_.push_back(used_ + bytes);
  std::fill_n(buffer + bytes, kGuard, kGuardByte);
  used_ += room;
  return buffer;
}

bool GuardedMemory::GuardsAreWhole() const {
  return std::all_of(guards_.begin(), guards_.end(), [this](size_t at) {
    return std::all_of(memory_ + at, memory_ + at + kGuard, [](std::byte byte) { return byte == kGuardByte; });
  });
}

std::vector<std::byte> GuardedMemory::Content() const { return {memory_, memory_ + used_}; }

}  // namespace fastjax::test
