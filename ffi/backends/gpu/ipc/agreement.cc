#include "backends/gpu/ipc/agreement.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fastjax::gpu::ipc {
namespace {

constexpr size_t kNameWords = 3;  // of a page

int32_t ProcessOf(const Participants& participants, int32_t rank) {
  const CallSite& site = participants.site;
  return site.process_of[static_cast<size_t>(site.partition(participants.group, site.position_at[rank]))];
}

}  // namespace

MemoryPeers::Agreement::Agreement(MemoryPeers* memory_peers, const Participants& participants, Group* group, bool sums,
                                  std::vector<ExchangeArgs>* args, Placement* placement, Layout* layout)
    : memory_peers_(*memory_peers),
      participants_(participants),
      group_(*group),
      sums_(sums),
      args_(args),
      placement_(placement),
      layout_(layout) {
  std::vector<int32_t> processes = participants.others;
  processes.insert(std::upper_bound(processes.begin(), processes.end(), participants.process), participants.process);
  for (const int32_t process : processes) {
    if (process == participants.process) own_ = peers_.size();
    Peer peer{process, {}, {}};
    for (int32_t rank = 0; rank < participants.site.group_size; ++rank) {
      if (ProcessOf(participants, rank) == process) peer.ranks.push_back(rank);
    }
    peers_.push_back(std::move(peer));
  }
}

Status MemoryPeers::Agreement::Run() {
  Describe();
  if (Status status = GatherMessages(); !status.ok()) return status;
  if (!refusal_.empty()) return Status::Ok();
  const bool news = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.message.news; });
  Status status;
  if (!Agree()) {
    status = Form();
  } else if (news) {
    status = Confirm(OpenAllocations());
  }
  if (!status.ok() || !refusal_.empty()) return status;
  return Begin();
}

// What all have agreed to. The others launch it, unless they are told otherwise.
Status MemoryPeers::Agreement::Begin() {
  ++group_.exchanges;
  if (group_.memory_group == nullptr) return Status::Ok();
  group_.memory_group->Begin(&layout_->step);
  Status status = Guarded([&] {
    for (const SharedAllocation& shared : own().message.shared_allocations) group_.opened.insert(shared.id);
    return PlaceAll();
  });
  if (status.ok()) {
    layout_->memory_group = group_.memory_group;
  } else {
    group_.memory_group->GiveUp();
  }
  return status;
}

// From now on, for all processes of the group alike.
void MemoryPeers::Agreement::Refuse(const std::string& why) {
  refusal_ = why;
  group_.Leave();
  memory_peers_.Refuse(participants_.group, why);
}

void MemoryPeers::Agreement::Describe() {
  MemoryMessage& message = own().message;
  message.host = memory_peers_.memory_->host();
  message.memory_group = group_.memory_group_id;
  message.exchanges = group_.exchanges;
  const std::vector<int32_t>& ranks = own().ranks;
  message.devices.resize(ranks.size());
  const auto domain = [&](int32_t rank) { return layout_->domain_of[static_cast<size_t>(rank)]; };
  Status status;
  const bool one = layout_->calls.size() == ranks.size() && std::all_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
                     return domain(rank) == domain(ranks.front());
                   });
  if (!one) status = Status::Unavailable("devices of one process do not reach each other's memory");
  for (size_t i = 0; status.ok() && i < ranks.size(); ++i) {
    const ExchangeArgs& args = ArgsOf(ranks[i]);
    MemoryMessage::Device& device = message.devices[i];
    device.staging_rows = std::max<int64_t>(placement_->staging_rows(ranks[i]), 0);
    if (sums_) {
      status = Export(i, args.source, args.source_rows * args.row_bytes, &device.places[kSource]);
      continue;
    }
    status = Export(i, args.destination, args.destination_rows * args.row_bytes, &device.places[kDestination]);
    if (!status.ok()) break;
    status = Export(i, placement_->staging(ranks[i]), device.staging_rows * args.row_bytes, &device.places[kStaging]);
  }
  message.refuses = !status.ok();
  refusal_ = status.message;
  message.news = group_.memory_group_id == 0 ||
                 std::any_of(message.shared_allocations.begin(), message.shared_allocations.end(),
                             [&](const SharedAllocation& shared) { return group_.opened.count(shared.id) == 0; });
}

Status MemoryPeers::Agreement::Export(size_t call, const void* address, int64_t bytes, MemoryMessage::Place* place) {
  if (bytes == 0 || address == nullptr) return Status::Ok();
  SharedAllocation shared;
  Status status = memory_peers_.memory_->Export(layout_->calls[call]->device, address, &shared);
  if (!status.ok()) return status;
  std::vector<SharedAllocation>& shared_allocations = own().message.shared_allocations;
  const auto same = [&](const SharedAllocation& other) { return other.id == shared.id && other.base == shared.base; };
  const auto found = std::find_if(shared_allocations.begin(), shared_allocations.end(), same);
  place->shared = found - shared_allocations.begin();
  place->offset = reinterpret_cast<uintptr_t>(address) - shared.base;
  if (found == shared_allocations.end()) shared_allocations.push_back(shared);
  return Status::Ok();
}

Status MemoryPeers::Agreement::AllGather(const char* about, std::vector<int64_t> words,
                                         std::vector<std::vector<int64_t>>* answers) {
  Status status = participants_.all_gather(about, std::move(words), answers);
  if (!status.ok()) return status;
  answers->insert(answers->begin() + static_cast<std::ptrdiff_t>(own_), std::vector<int64_t>{});
  return Status::Ok();
}

Status MemoryPeers::Agreement::GatherMessages() {
  std::vector<std::vector<int64_t>> answers;
  if (Status status = AllGather("where memory lies", Encode(own().message), &answers); !status.ok()) return status;
  std::string refusal = refusal_;
  bool alone = true;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (i != own_ && !Decode(answers[i], peer.ranks.size(), &peer.message)) {
      return Status::Internal(participants_.site.Prefix() + "process " + std::to_string(peer.process) +
                              " describes memory in another way; do all run the same version?");
    }
    if (peer.message.refuses && refusal.empty()) {
      refusal = "process " + std::to_string(peer.process) + " cannot share its memory";
    }
    for (size_t j = 0; j < i; ++j) alone = alone && peers_[j].message.host != peer.message.host;
  }
  if (refusal.empty() && alone) refusal = "no two processes of the group are on one host";
  if (!refusal.empty()) Refuse(refusal);
  return Status::Ok();
}

// Whether all are in what was agreed on before.
bool MemoryPeers::Agreement::Agree() const {
  const MemoryMessage& here = own().message;
  return here.memory_group != 0 && std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return peer.message.memory_group == here.memory_group && peer.message.exchanges == here.exchanges;
         });
}

int32_t MemoryPeers::Agreement::DevicesNear() const {
  size_t count = 0;
  for (const Peer& peer : peers_) count += IsNear(peer) ? peer.ranks.size() : 0;
  return static_cast<int32_t>(count);
}

// All begin anew. Everybody makes a page, since nobody knows yet whose is taken.
Status MemoryPeers::Agreement::Form() {
  group_.Leave();
  const bool near = static_cast<size_t>(DevicesNear()) > own().ranks.size();
  std::unique_ptr<BarrierPage> page;
  Status status = near ? BarrierPage::Make(memory_peers_.gpu_, DevicesNear(), &page) : Status::Ok();
  const PageName name = page == nullptr ? PageName{} : page->name();
  std::vector<int64_t> words = {static_cast<int64_t>(name.process), static_cast<int64_t>(name.random[0]),
                                static_cast<int64_t>(name.random[1])};
  std::vector<std::vector<int64_t>> answers;
  if (Status swapped = AllGather("pages", words, &answers); !swapped.ok()) return swapped;
  answers[own_] = std::move(words);
  std::vector<PageName> names(peers_.size());
  uint64_t id = 1;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (answers[i].size() != kNameWords)
      return Status::Internal(participants_.site.Prefix() + "a page has another name.");
    const auto word = [&](size_t at) { return static_cast<uint64_t>(answers[i][at]); };
    names[i] = {word(0), {word(1), word(2)}};
    id += word(1);
  }
  if (status.ok() && near) status = MakeMemoryGroup(std::move(page), names);
  if (status.ok()) status = OpenAllocations();
  status = Confirm(status);
  if (!status.ok() || !refusal_.empty()) return status;
  group_.memory_group_id = id | 1;
  if (group_.memory_group != nullptr) group_.memory_group->Unlink();
  return status;
}

// By the page of the first of those on this host.
Status MemoryPeers::Agreement::MakeMemoryGroup(std::unique_ptr<BarrierPage> own_page,
                                               const std::vector<PageName>& names) {
  std::vector<GroupDevice> devices;
  size_t first = peers_.size();
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!IsNear(peers_[i])) continue;
    first = std::min(first, i);
    for (const int32_t rank : peers_[i].ranks) {
      const int32_t call = layout_->call_of[static_cast<size_t>(rank)];
      devices.push_back({rank, call < 0 ? -1 : layout_->calls[static_cast<size_t>(call)]->device});
    }
  }
  if (first != own_) {
    // The own one goes now; nobody has looked for it.
    Status status = BarrierPage::Open(memory_peers_.gpu_, names[first], DevicesNear(), &own_page);
    if (!status.ok()) return status;
  }
  return MemoryGroup::Make(memory_peers_.gpu_, group_.report, std::move(own_page), devices, &group_.memory_group);
}

Status MemoryPeers::Agreement::OpenAllocations() {
  for (const Peer& peer : peers_) {
    if (&peer == &own() || !IsNear(peer)) continue;
    for (const SharedAllocation& shared : peer.message.shared_allocations) {
      for (const Caller* caller : layout_->calls) {
        std::byte* base = nullptr;
        Status status = memory_peers_.memory_->Import(caller->device, peer.process, shared, &base);
        if (!status.ok()) return status;
      }
    }
  }
  return Status::Ok();
}

// Whether everybody could do it.
Status MemoryPeers::Agreement::Confirm(const Status& here) {
  std::vector<std::vector<int64_t>> answers;
  if (Status status = AllGather("whether memory is shared", {here.ok() ? 1 : 0}, &answers); !status.ok()) {
    if (group_.memory_group != nullptr) group_.memory_group->GiveUp();  // others may have heard of all
    return status;
  }
  std::string refusal = here.message;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i == own_ || !refusal.empty() || (answers[i].size() == 1 && answers[i][0] == 1)) continue;
    refusal = "process " + std::to_string(peers_[i].process) + " cannot open memory that others share";
  }
  if (!refusal.empty()) Refuse(refusal);
  return Status::Ok();
}

Status MemoryPeers::Agreement::PlaceAll() {
  const size_t calls = layout_->calls.size();
  const auto ranks = static_cast<size_t>(participants_.site.group_size);
  if (calls > 1) layout_->shifts.assign(calls * ranks * kParts, 0);
  for (const Peer& peer : peers_) {
    if (&peer == &own() || !IsNear(peer)) continue;
    for (size_t i = 0; i < peer.ranks.size(); ++i) {
      for (size_t call = 0; call < calls; ++call) {
        if (Status status = PlaceDevice(call, peer, i); !status.ok()) return status;
      }
    }
  }
  return Status::Ok();
}

Status MemoryPeers::Agreement::PlaceDevice(size_t call, const Peer& peer, size_t index) {
  const int32_t rank = peer.ranks[index];
  const MemoryMessage::Device& device = peer.message.devices[index];
  std::byte* at[kParts] = {};
  for (const Part part : {kSource, kDestination, kStaging}) {
    if (Status status = FindPart(call, peer, device, part, &at[part]); !status.ok()) return status;
  }
  ExchangeArgs& args = ArgsOf(rank);
  if (call == 0) {
    args.source = at[kSource];
    args.destination = at[kDestination];
    placement_->SetStaging(rank, device.staging_rows, at[kStaging]);
    layout_->domain_of[static_cast<size_t>(rank)] = layout_->domain_of[static_cast<size_t>(own().ranks.front())];
    return Status::Ok();
  }
  const std::byte* const first[kParts] = {args.source, args.destination, placement_->staging(rank)};
  const size_t shifts =
      (call * static_cast<size_t>(participants_.site.group_size) + static_cast<size_t>(rank)) * kParts;
  for (size_t part = 0; part < kParts; ++part) {
    layout_->shifts[shifts + part] = reinterpret_cast<intptr_t>(at[part]) - reinterpret_cast<intptr_t>(first[part]);
  }
  return Status::Ok();
}

Status MemoryPeers::Agreement::FindPart(size_t call, const Peer& peer, const MemoryMessage::Device& device, Part part,
                                        std::byte** at) const {
  const MemoryMessage::Place& place = device.places[part];
  const ExchangeArgs& any = ArgsOf(own().ranks.front());
  const int64_t rows[kParts] = {any.source_rows, any.destination_rows, device.staging_rows};
  const auto bytes = static_cast<uint64_t>(rows[part]) * static_cast<uint64_t>(any.row_bytes);
  if (bytes == 0 || sums_ != (part == kSource)) return Status::Ok();
  const SharedAllocation shared =
      place.shared < 0 ? SharedAllocation{} : peer.message.shared_allocations[static_cast<size_t>(place.shared)];
  if (place.offset > shared.bytes || bytes > shared.bytes - place.offset) {
    return Status::Internal(participants_.site.Prefix() + "process " + std::to_string(peer.process) +
                            " shares less memory than it needs; do all run the same version?");
  }
  std::byte* base = nullptr;
  const int32_t here = layout_->calls[call]->device;
  if (Status status = memory_peers_.memory_->Import(here, peer.process, shared, &base); !status.ok()) return status;
  *at = base + place.offset;
  return Status::Ok();
}

}  // namespace fastjax::gpu::ipc
