#include "backends/gpu/nccl/fabric.h"

#include <utility>

namespace fastjax::gpu::nccl {
namespace {

// A name for the devices of a group and their ranks: the same in all their processes, and different for others. Call
// sites whose groups have one name share communicators. Devices of other processes are told by their process and their
// number in it.
std::string NameOf(const CallSite& site, int32_t group, const std::vector<Member>& members) {
  const bool all = static_cast<int32_t>(members.size()) == site.group_size;
  std::string name = all ? "here" : "GPUs";
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const auto partition = static_cast<size_t>(site.partition(group, site.position_at[static_cast<size_t>(rank)]));
    name += " " + (all ? std::to_string(members[static_cast<size_t>(rank)].device)
                       : std::to_string(site.process_of[partition]) + "." + std::to_string(site.rail_of[partition]));
  }
  return name;
}

}  // namespace

Status Channel::Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams) {
  if (Status status = report_->Take(); !status.ok()) return status;
  return communicator_group_->Move(report_, messages, count, streams);
}

Status Fabric::FindDomains(const CallSite& site, Layout* layout) {
  bool all = true;
  for (const Caller* caller : layout->calls) {
    for (const Caller* peer : layout->calls) {
      bool possible = true;
      if (caller == peer) continue;
      if (Status status = gpu_->EnablePeer(caller->device, peer->device, &possible); !status.ok()) return status;
      all = all && possible;
    }
  }
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const bool here = layout->call_of[static_cast<size_t>(rank)] >= 0;
    layout->domain_of[static_cast<size_t>(rank)] = !here ? site.group_size + rank : all ? 0 : rank;
  }
  return Status::Ok();
}

Status Fabric::Connect(const CallSite& site, int32_t group, const Layout& layout, Channel* channel) {
  std::vector<Member> members;
  if (Status status = FindMembers(site, group, layout, &members); !status.ok()) return status;
  auto& own = channel->communicator_group_;
  const bool ready = own != nullptr && own->IsReadyFor(members);
  if (Status status = channel->report_->Take(); !status.ok()) return status;
  return ready ? Status::Ok() : Find(site, group, members, &own);
}

Status Fabric::FindMembers(const CallSite& site, int32_t group, const Layout& layout,
                           std::vector<Member>* members) const {
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const int32_t call = layout.call_of[static_cast<size_t>(rank)];
    if (call < 0) continue;
    const int32_t device = layout.calls[static_cast<size_t>(call)]->device;
    for (const Member& other : *members) {
      if (other.device != device) continue;
      return Status::Invalid(site.Prefix() + site.DeviceName(group, site.position_at[other.rank]) + " and " +
                             site.DeviceName(group, site.position_at[rank]) + " are both " + gpu_->Name(device) +
                             "; messages go between different ones.");
    }
    members->push_back({rank, device});
  }
  return Status::Ok();
}

Status Fabric::Find(const CallSite& site, int32_t group, const std::vector<Member>& members,
                    std::shared_ptr<CommunicatorGroup>* communicator_group) {
  if (share_id_ == nullptr && static_cast<int32_t>(members.size()) < site.group_size) {
    return Status::Unavailable(site.Prefix() +
                               "devices of other processes take part, and there is nothing to find these by.");
  }
  const std::string name = NameOf(site, group, members);
  std::unique_lock<std::mutex> own(mutex_);
  Known& known = known_[name];
  own.unlock();
  // The fabric's own lock is not held here: processes may come to the groups that they share in different orders.
  const std::lock_guard<std::mutex> lock(known.mutex);
  // The failed one may be the call site's own.
  const std::shared_ptr<CommunicatorGroup> before = known.communicator_group.lock();
  if (before != nullptr && before->IsReadyFor(members)) {
    *communicator_group = before;
    return Status::Ok();
  }
  if (before != nullptr && !before->AwaitAbort(site.timeout_ms)) {
    return Status::Unavailable(site.Prefix() +
                               "communicators that failed have not been aborted yet; if that goes on, restart.");
  }
  communicator_group->reset();
  Status status = Make(site, group, members, name, &known, communicator_group);
  if (!status.ok()) status.message = site.Prefix() + status.message;
  return status;
}

Status Fabric::Make(const CallSite& site, int32_t group, const std::vector<Member>& members, const std::string& name,
                    Known* known, std::shared_ptr<CommunicatorGroup>* communicator_group) {
  std::string wrong;
  const Library* const library = Load(libraries_, &wrong);
  if (library == nullptr) return Status::Unavailable(wrong + ".");
  UniqueId id;
  Status status = Identify(*library, site, group, members, name, known->generation, &id);
  if (!status.ok()) return status;
  ++known->generation;  // also if it comes to nothing here: the others have the id
  std::unique_ptr<Communicators> communicators;
  status = Communicators::Make(library, gpu_, site.group_size, members, id, site.timeout_ms, &communicators);
  if (!status.ok()) return status;
  *communicator_group = CommunicatorGroup::Create(gpu_, std::move(communicators));
  known->communicator_group = *communicator_group;
  return Status::Ok();
}

Status Fabric::Identify(const Library& library, const CallSite& site, int32_t group, const std::vector<Member>& members,
                        const std::string& name, int64_t generation, UniqueId* id) const {
  const bool makes = members.front().rank == 0;
  if (makes) {
    const Result result = library.GetUniqueId(id);
    if (result != kSuccess) {
      return Status::Internal(library.name + " could not make an id: " + library.GetErrorString(result) + " (" +
                              std::to_string(result) + "). NCCL_DEBUG=WARN has it say more.");
    }
  }
  if (static_cast<int32_t>(members.size()) == site.group_size) return Status::Ok();
  return share_id_(site, group, name, generation, makes, id);
}

}  // namespace fastjax::gpu::nccl
