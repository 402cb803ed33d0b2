#include "backends/gpu/ipc/memory_peers.h"

#include "backends/gpu/ipc/agreement.h"

namespace fastjax::gpu::ipc {

MemoryPeers::Group& MemoryPeers::Of(int32_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return groups_[group];
}

bool MemoryPeers::Sought(int32_t group) { return Refusal(group).empty(); }

std::string MemoryPeers::Refusal(int32_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = refusals_.find(group);
  return found == refusals_.end() ? "" : found->second;
}

void MemoryPeers::Refuse(int32_t group, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refusals_[group] = why;
}

Status MemoryPeers::Meet(const Participants& participants, bool sums, std::vector<ExchangeArgs>* args,
                         Placement* placement, Layout* layout) {
  Group& own = Of(participants.group);
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.report == nullptr) own.report = std::make_shared<Report>(participants.site, participants.group);
  if (own.memory_group != nullptr && !own.memory_group->IsWhole()) own.Leave();
  Status status = own.report->Take();
  if (status.ok()) status = Agreement(this, participants, &own, sums, args, placement, layout).Run();
  if (!status.ok()) own.Leave();
  return status;
}

}  // namespace fastjax::gpu::ipc
