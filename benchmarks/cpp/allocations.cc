#include "allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

// In front of every block, its size, with room that keeps the block aligned.
constexpr std::size_t kPrefix = alignof(std::max_align_t);
static_assert(kPrefix >= sizeof(std::size_t));

fastjax::bench::Allocations g_allocations = {0, 0};

}  // namespace

void* operator new(std::size_t size) {
  auto* memory = static_cast<unsigned char*>(std::malloc(size + kPrefix));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(memory) = size;
  ++g_allocations.calls;
  g_allocations.live_bytes += static_cast<int64_t>(size);
  return memory + kPrefix;
}

void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  unsigned char* memory = static_cast<unsigned char*>(block) - kPrefix;
  g_allocations.live_bytes -= static_cast<int64_t>(*reinterpret_cast<std::size_t*>(memory));
  std::free(memory);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace fastjax::bench {

Allocations GetAllocations() { return g_allocations; }

}  // namespace fastjax::bench
