// Declares Memory: the device memory that processes share. This process exports its own allocations, and keeps those
// that it has imported of others.
#ifndef FASTJAX_BACKENDS_GPU_IPC_MEMORY_H_
#define FASTJAX_BACKENDS_GPU_IPC_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "exchange/status.h"
#include "kernels/driver.h"

namespace fastjax::gpu::ipc {

// An allocation, as its process tells others of it.
struct SharedAllocation {
  uint64_t base = 0;  // in its process: tells its allocations apart
  uint64_t bytes = 0;
  uint64_t id = 0;
  kernels::MemoryHandle handle;
};

// Thread-safe. An allocator's memory stays as it is for long, and opening it is slow: what was opened is kept, until
// something else is in its place.
class Memory {
 public:
  // `host`: HostId(), but for tests.
  Memory(std::shared_ptr<Gpu> gpu, uint64_t host) : gpu_(std::move(gpu)), host_(host) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t host() const { return host_; }
  // The allocation of a device here that `address` is in.
  Status Export(int32_t device, const void* address, SharedAllocation* shared);
  // Where `device` finds what another process exports.
  Status Import(int32_t device, int32_t process, const SharedAllocation& shared, std::byte** base);

 private:
  struct Exported {
    uint64_t id;
    kernels::MemoryHandle handle;
  };
  struct Imported {
    SharedAllocation shared;
    std::byte* base;
  };
  using Key = std::tuple<int32_t, int32_t, uint64_t>;  // device, process, base there

  void CloseStale(int32_t device, int32_t process, const SharedAllocation& shared);

  const std::shared_ptr<Gpu> gpu_;
  const uint64_t host_;
  std::mutex mutex_;
  std::map<std::pair<int32_t, uint64_t>, Exported> exported_;  // by device and base
  std::map<Key, Imported> imported_;
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_MEMORY_H_
