// Declares the agreement of the processes of a group on shared memory, for one exchange.
#ifndef FASTJAX_BACKENDS_GPU_IPC_AGREEMENT_H_
#define FASTJAX_BACKENDS_GPU_IPC_AGREEMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/ipc/barrier_page.h"
#include "backends/gpu/ipc/memory_message.h"
#include "backends/gpu/ipc/memory_peers.h"

namespace fastjax::gpu::ipc {

class MemoryPeers::Agreement {
 public:
  Agreement(MemoryPeers* memory_peers, const Participants& participants, Group* group, bool sums,
            std::vector<ExchangeArgs>* args, Placement* placement, Layout* layout);

  Status Run();

 private:
  // A process, with its devices.
  struct Peer {
    int32_t process;
    std::vector<int32_t> ranks;
    MemoryMessage message;
  };

  void Describe();
  Status Export(size_t call, const void* address, int64_t bytes, MemoryMessage::Place* place);
  Status AllGather(const char* about, std::vector<int64_t> words, std::vector<std::vector<int64_t>>* answers);
  Status GatherMessages();
  bool Agree() const;
  Status Form();
  Status MakeMemoryGroup(std::unique_ptr<BarrierPage> own, const std::vector<PageName>& names);
  Status OpenAllocations();
  Status Confirm(const Status& here);
  Status Begin();
  void Refuse(const std::string& why);

  Status PlaceAll();
  Status PlaceDevice(size_t call, const Peer& peer, size_t index);
  Status FindPart(size_t call, const Peer& peer, const MemoryMessage::Device& device, Part part, std::byte** at) const;
  ExchangeArgs& ArgsOf(int32_t rank) const {
    return (*args_)[static_cast<size_t>(participants_.site.position_at[rank])];
  }
  Peer& own() { return peers_[own_]; }
  const Peer& own() const { return peers_[own_]; }
  // On this host, in this process or another.
  bool IsNear(const Peer& peer) const { return peer.message.host == own().message.host; }
  int32_t DevicesNear() const;

  MemoryPeers& memory_peers_;
  const Participants& participants_;
  Group& group_;
  const bool sums_;
  std::vector<ExchangeArgs>* const args_;
  Placement* const placement_;
  Layout* const layout_;
  std::vector<Peer> peers_;  // by process
  size_t own_ = 0;
  std::string refusal_;  // this process's own
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_AGREEMENT_H_
