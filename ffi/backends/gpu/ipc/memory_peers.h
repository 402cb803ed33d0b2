// Declares MemoryPeers, which finds out which processes share their devices' memory in an exchange, and where that
// memory lies. All processes of a group agree on it before anything is launched.
#ifndef FASTJAX_BACKENDS_GPU_IPC_MEMORY_PEERS_H_
#define FASTJAX_BACKENDS_GPU_IPC_MEMORY_PEERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/device/report.h"
#include "backends/gpu/ipc/memory.h"
#include "backends/gpu/ipc/memory_group.h"
#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/status.h"
#include "execution/placement.h"

namespace fastjax::gpu::ipc {

// Who comes to an exchange.
struct Participants {
  const CallSite& site;
  int32_t group;
  int32_t process;
  const std::vector<int32_t>& others;  // processes, ascending
  // Swaps words with these, each time `about` something else. Does not wait longer than the call site's limit.
  std::function<Status(const char* about, std::vector<int64_t> words, std::vector<std::vector<int64_t>>* answers)>
      all_gather;
};

// Belongs to one call site. Thread-safe.
class MemoryPeers {
 public:
  // `memory` is the whole process's.
  MemoryPeers(std::shared_ptr<Gpu> gpu, std::shared_ptr<Memory> memory)
      : gpu_(std::move(gpu)), memory_(std::move(memory)) {}

  // Whether this process would share memory with others of the group, as far as it knows. Where any would not, Meet is
  // not to be called.
  bool Sought(int32_t group);
  // Why it would not.
  std::string Refusal(int32_t group);

  // `layout` has its calls and the domains of this process's devices, and `args` and `placement` their memory. Puts the
  // devices of processes on this host, if all processes agree to it, into the domain of those here, and completes
  // `args` and `placement` with their memory. `sums`: which part of it is needed. What went wrong with the group's
  // exchanges on the devices, since the last one, is told here.
  Status Meet(const Participants& participants, bool sums, std::vector<ExchangeArgs>* args, Placement* placement,
              Layout* layout);

 private:
  struct Group {
    std::mutex mutex;  // held while processes meet
    std::shared_ptr<Report> report;
    // What processes have agreed on; 0: nothing. The memory group is null where this process is alone on its host.
    uint64_t memory_group_id = 0;
    std::shared_ptr<MemoryGroup> memory_group;
    uint64_t exchanges = 0;
    std::set<uint64_t> opened;  // ids of shared allocations from here, which others have

    void Leave() {
      memory_group_id = 0;
      memory_group = nullptr;
      exchanges = 0;
      opened.clear();
    }
  };
  class Agreement;

  Group& Of(int32_t group);
  void Refuse(int32_t group, const std::string& why);

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Memory> memory_;
  std::mutex mutex_;
  std::map<int32_t, Group> groups_;
  std::map<int32_t, std::string> refusals_;  // by group
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_MEMORY_PEERS_H_
