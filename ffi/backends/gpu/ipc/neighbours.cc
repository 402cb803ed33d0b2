#include "backends/gpu/ipc/neighbours.h"

#include "backends/gpu/ipc/encounter.h"

namespace fastjax::gpu::ipc {

Neighbours::Group& Neighbours::Of(int32_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return groups_[group];
}

bool Neighbours::Sought(int32_t group) { return Refusal(group).empty(); }

std::string Neighbours::Refusal(int32_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = refusals_.find(group);
  return found == refusals_.end() ? "" : found->second;
}

void Neighbours::Refuse(int32_t group, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refusals_[group] = why;
}

Status Neighbours::Meet(const Party& party, bool sums, std::vector<ExchangeArgs>* args, Placement* placement,
                        Layout* layout) {
  Group& own = Of(party.group);
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.report == nullptr) own.report = std::make_shared<Report>(party.site, party.group);
  if (own.circle != nullptr && !own.circle->IsWhole()) own.Leave();
  Status status = own.report->Take();
  if (status.ok()) status = Encounter(this, party, &own, sums, args, placement, layout).Run();
  if (!status.ok()) own.Leave();
  return status;
}

}  // namespace fastjax::gpu::ipc
