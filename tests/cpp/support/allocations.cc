#include "support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> g_allocations{0};
std::atomic<long> g_arrays{0};
std::atomic<bool> g_no_staging_memory{false};
thread_local bool t_no_memory = false;

void* Allocate(std::size_t size) {
  ++g_allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  if (t_no_memory) throw std::bad_alloc();
  return Allocate(size);
}
// What std::stable_sort takes. The sanitizers' own would not go with operator delete.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](std::size_t size) {
  ++g_arrays;
  return Allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  ++g_allocations;
  void* memory = g_no_staging_memory ? nullptr : std::malloc(size);
  if (memory != nullptr) ++g_arrays;
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept {
  if (memory != nullptr) --g_arrays;
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept { operator delete[](memory); }

namespace fastjax::test {

long Allocations() { return g_allocations; }
long Arrays() { return g_arrays; }
bool& NoMemory() { return t_no_memory; }

NoStagingMemory::NoStagingMemory() { g_no_staging_memory = true; }
NoStagingMemory::~NoStagingMemory() { g_no_staging_memory = false; }

}  // namespace fastjax::test
