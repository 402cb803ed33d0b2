// Declares MemoryMessage: what processes that may share memory tell each other about an exchange, as words of a
// message.
#ifndef FASTJAX_BACKENDS_GPU_IPC_MEMORY_MESSAGE_H_
#define FASTJAX_BACKENDS_GPU_IPC_MEMORY_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/device/layout.h"
#include "backends/gpu/ipc/memory.h"

namespace fastjax::gpu::ipc {

struct MemoryMessage {
  // Inside one of the message's shared allocations; none where others do not touch it.
  struct Place {
    int64_t shared = -1;
    uint64_t offset = 0;
  };
  struct Device {
    std::array<Place, kParts> places;
    int64_t staging_rows = 0;
  };

  bool refuses = false;
  uint64_t host = 0;
  uint64_t memory_group = 0;    // 0: none that is whole
  uint64_t exchanges = 0;       // of it, so far
  bool news = false;            // there are shared allocations that not everybody has opened
  std::vector<Device> devices;  // of the process, by rank
  std::vector<SharedAllocation> shared_allocations;
};

std::vector<int64_t> Encode(const MemoryMessage& message);
// False if it is no message of a process that has so many devices.
bool Decode(const std::vector<int64_t>& words, size_t devices, MemoryMessage* message);

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_MEMORY_MESSAGE_H_
