// Memory of the emulated GPU: allocations that know their extent, and can be opened as if by other processes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "kernels/emulated_gpu.h"

namespace fastjax::kernels {
namespace {

struct Allocation {
  size_t bytes;
  uint64_t id;
  int file;  // that it is mapped from; -1: plain memory
};

// A handle that was opened; the address is the allocation's own unless that is mapped once more.
struct Opened {
  size_t bytes;
  int count;
  bool mapped;
  int device;
};

struct Memory {
  std::mutex mutex;
  uint64_t next_id = 1;
  std::map<std::byte*, Allocation> allocations;
  std::map<std::byte*, Opened> opened;
  std::set<void*> registered;
};

Memory& GetMemory() {
  static auto* const memory = new Memory;  // streams may run as the process ends
  return *memory;
}

constexpr uint64_t kHandleMark = 0x656c646e6168;  // no other bytes are taken for a handle

std::byte* Map(int file, size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

std::byte* MapNew(size_t bytes, int* file) {
  *file = memfd_create("emulated", MFD_CLOEXEC);
  if (*file < 0) return nullptr;
  std::byte* const at = ftruncate(*file, static_cast<off_t>(bytes)) == 0 ? Map(*file, bytes) : nullptr;
  if (at == nullptr) close(*file);
  return at;
}

}  // namespace

EmulatedSharing& emulatedSharing() {
  static auto* const sharing = new EmulatedSharing;
  return *sharing;
}

emulatedError_t emulatedMalloc(void** memory, size_t bytes) {
  emulatedNeedDevice();
  int file = -1;
  std::byte* const at = emulatedSharing().aliases && bytes > 0
                            ? MapNew(bytes, &file)
                            : static_cast<std::byte*>(std::malloc(std::max<size_t>(bytes, 1)));
  *memory = at;
  if (at == nullptr) return emulatedErrorMemoryAllocation;
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.allocations[at] = {bytes, all.next_id++, file};
  return emulatedSuccess;
}

emulatedError_t emulatedFree(void* memory) {
  if (memory == nullptr) return emulatedSuccess;
  Allocation allocation{};
  {
    Memory& all = GetMemory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.allocations.find(static_cast<std::byte*>(memory));
    if (found == all.allocations.end()) return emulatedErrorInvalidValue;
    allocation = found->second;
    all.allocations.erase(found);
  }
  if (allocation.file < 0) {
    std::free(memory);
  } else {
    munmap(memory, allocation.bytes);
    close(allocation.file);
  }
  return emulatedSuccess;
}

emulatedError_t emulatedHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  emulatedNeedDevice();
  int device = 0;
  emulatedGetDevice(&device);
  if (device == emulatedFaults().pinned) return emulatedErrorMemoryAllocation;
  *memory = std::malloc(bytes);
  return *memory == nullptr ? emulatedErrorMemoryAllocation : emulatedSuccess;
}

emulatedError_t emulatedFreeHost(void* memory) {
  emulatedNeedDevice();
  std::free(memory);
  return emulatedSuccess;
}

emulatedError_t emulatedHostRegister(void* memory, size_t bytes, unsigned flags) {
  emulatedNeedDevice();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (flags != (emulatedHostRegisterPortable | emulatedHostRegisterMapped) || bytes == 0 || bytes % page != 0 ||
      reinterpret_cast<uintptr_t>(memory) % page != 0) {
    return emulatedErrorInvalidValue;
  }
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.registered.insert(memory).second ? emulatedSuccess : emulatedErrorHostMemoryAlreadyRegistered;
}

emulatedError_t emulatedHostGetDevicePointer(void** there, void* memory, unsigned /*flags*/) {
  emulatedNeedDevice();
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.registered.count(memory) == 0) return emulatedErrorInvalidValue;
  *there = memory;
  return emulatedSuccess;
}

emulatedError_t emulatedHostUnregister(void* memory) {
  emulatedNeedDevice();
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.registered.erase(memory) == 1 ? emulatedSuccess : emulatedErrorHostMemoryNotRegistered;
}

emulatedError_t emulatedFindRange(void** base, size_t* bytes, uint64_t* id, const void* address) {
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto* const at = static_cast<const std::byte*>(address);
  auto after = all.allocations.begin();
  while (after != all.allocations.end() && after->first <= at) ++after;
  if (after == all.allocations.begin()) return emulatedErrorInvalidValue;
  const auto& [begin, allocation] = *--after;
  if (at >= begin + allocation.bytes) return emulatedErrorInvalidValue;
  *base = begin;
  *bytes = allocation.bytes;
  *id = allocation.id;
  return emulatedSuccess;
}

emulatedError_t emulatedIpcGetMemHandle(emulatedIpcMemHandle_t* handle, void* base) {
  emulatedNeedDevice();
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.allocations.find(static_cast<std::byte*>(base));
  if (found == all.allocations.end()) return emulatedErrorInvalidValue;
  *handle = {{kHandleMark, found->second.id}};
  return emulatedSuccess;
}

emulatedError_t emulatedIpcOpenMemHandle(void** base, emulatedIpcMemHandle_t handle, unsigned flags) {
  emulatedNeedDevice();
  if (flags != emulatedIpcMemLazyEnablePeerAccess || handle.words[0] != kHandleMark) return emulatedErrorInvalidValue;
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [begin, allocation] : all.allocations) {
    if (allocation.id != handle.words[1]) continue;
    std::byte* const at = allocation.file < 0 ? begin : Map(allocation.file, allocation.bytes);
    if (at == nullptr) return emulatedErrorMemoryAllocation;
    Opened& opened = all.opened[at];
    opened.bytes = allocation.bytes;
    opened.mapped = allocation.file >= 0;
    ++opened.count;
    emulatedGetDevice(&opened.device);
    ++emulatedSharing().opened;
    *base = at;
    return emulatedSuccess;
  }
  return emulatedErrorInvalidValue;
}

int emulatedOpenedBy(const void* address) {
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto* const at = static_cast<const std::byte*>(address);
  for (const auto& [begin, opened] : all.opened) {
    if (at >= begin && at < begin + opened.bytes) return opened.device;
  }
  return -1;
}

emulatedError_t emulatedIpcCloseMemHandle(void* base) {
  emulatedNeedDevice();
  Memory& all = GetMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.opened.find(static_cast<std::byte*>(base));
  if (found == all.opened.end()) return emulatedErrorInvalidValue;
  --emulatedSharing().opened;
  if (--found->second.count > 0) return emulatedSuccess;
  if (found->second.mapped) munmap(base, found->second.bytes);
  all.opened.erase(found);
  return emulatedSuccess;
}

}  // namespace fastjax::kernels
