#include "transport/gpu/beats.h"

#include <algorithm>

#include "planner/table.h"
#include "transport/execution/sum.h"

namespace fastjax::transport::gpu {
namespace {

using execution::CopyOp;
using planner::Phase;
using planner::Transfer;

// What sorts transfers, from the highest bits to the lowest: beat, kind, device, peer, phase, and their order in the
// tables.
constexpr int kBeatBits = 13;
constexpr int kKindBits = 2;
constexpr int kRankBits = 13;
constexpr int kPhaseBits = 2;
constexpr int kIndexBits = 21;
static_assert(kBeatBits + kKindBits + 2 * kRankBits + kPhaseBits + kIndexBits == 64);

constexpr uint64_t Low(uint64_t value, int bits) { return value & ((uint64_t{1} << bits) - 1); }

// Messages begin where networks like them to.
constexpr int64_t kMessageAlignment = 256;
int64_t Aligned(int64_t bytes) { return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment; }

// What feeds a stage comes one beat before it, and what drains it one after. `lead`: 0 where nothing does.
int32_t BeatOf(const Transfer& transfer, int32_t lead) {
  switch (transfer.phase) {
    case Phase::kLocal:
      return 0;
    case Phase::kBalance:
      return transfer.stage;
    case Phase::kScaleOut:
      return transfer.stage + lead;
    case Phase::kRedistribute:
      return transfer.stage + lead + 1;
  }
  return 0;
}

Status TooLarge(const CallSite& site) {
  return Status::Invalid(site.Prefix() +
                         "the plan has more stages or transfers than a GPU transport counts; split the exchange.");
}

}  // namespace

std::byte* Beats::LaneMemory::Take(int32_t rank, int64_t bytes) {
  const Caller& caller = *layout->lanes[static_cast<size_t>(layout->lane_of[static_cast<size_t>(rank)])];
  return caller.allocate(static_cast<size_t>(bytes));
}

Status Beats::Begin(const CallSite& site, const std::vector<ExchangeArgs>& args,
                    const std::vector<const int32_t*>& tables, bool sums, const GroupTraffic& traffic,
                    const Layout& layout) {
  site_ = &site;
  args_ = &args;
  traffic_ = &traffic;
  layout_ = &layout;
  tables_ = &tables;
  memory_.layout = &layout;
  beats_ = 1;
  sums_ = sums;
  transfers_.clear();
  keys_.clear();
  parcels_.clear();
  messages_.clear();
  moves_.resize(layout.lanes.size());
  for (auto& moves : moves_) moves.clear();
  buffers_.assign(2 * layout.lanes.size(), nullptr);
  const ExchangeArgs& any = args[static_cast<size_t>(site.position_at[0])];
  if (!sums) return placement_.Begin(site, args, any.row_bytes, tables, traffic, &memory_);
  if (Status status = execution::CheckSummable(site, any); !status.ok()) return status;
  no_tables_.assign(static_cast<size_t>(site.group_size), nullptr);
  return placement_.Begin(site, args, any.row_bytes, no_tables_, traffic, &memory_);
}

Status Beats::Build(bool backwards) {
  if (sums_) return BuildSum();
  if (Status status = TakeEntries(backwards); !status.ok()) return status;
  return Arrange(false);
}

Status Beats::TakeEntries(bool backwards) {
  for (int32_t rank = 0; rank < site_->group_size; ++rank) {
    if (layout_->lane_of[static_cast<size_t>(rank)] < 0) continue;
    const planner::TableView table((*tables_)[static_cast<size_t>(rank)]);
    const int32_t lead = table.stages_rows() ? 1 : 0;
    for (int32_t i = 0; i < table.entries(); ++i) {
      Transfer transfer = table.entry(i);
      if (backwards) transfer = planner::Transposed(transfer, table.stages());
      if (Status status = placement_.Check(transfer); !status.ok()) return status;
      const int32_t beat = BeatOf(transfer, lead);
      if (beat < 0 || beat >= (1 << kBeatBits) || transfers_.size() + 2 >= (size_t{1} << kIndexBits) ||
          site_->group_size > (1 << kRankBits)) {
        return TooLarge(*site_);
      }
      beats_ = std::max(beats_, beat + 1);
      TakeTransfer(rank, transfer, beat);
    }
  }
  return Status::Ok();
}

// A transfer stands in the tables of both its ends. Where they reach each other's memory, the sender copies.
void Beats::TakeTransfer(int32_t rank, const Transfer& transfer, int32_t beat) {
  const auto& domain = layout_->domain_of;
  const bool copies = domain[static_cast<size_t>(transfer.src)] == domain[static_cast<size_t>(transfer.dst)];
  if (transfer.src == rank) AddKey(beat, copies ? kCopy : kSend, rank, copies ? 0 : transfer.dst, transfer);
  if (transfer.dst == rank && !copies) AddKey(beat, kReceive, rank, transfer.src, transfer);
}

void Beats::AddKey(int32_t beat, Kind kind, int32_t here, int32_t peer, const Transfer& transfer) {
  uint64_t key = static_cast<uint64_t>(beat);
  key = key << kKindBits | static_cast<uint64_t>(kind);
  key = key << kRankBits | static_cast<uint64_t>(here);
  key = key << kRankBits | static_cast<uint64_t>(peer);
  key = key << kPhaseBits | static_cast<uint64_t>(transfer.phase);
  key = key << kIndexBits | static_cast<uint64_t>(transfers_.size());
  keys_.push_back(key);
  transfers_.push_back(transfer);
}

const Transfer& Beats::TransferOf(uint64_t key) const { return transfers_[Low(key, kIndexBits)]; }

// From sorted transfers to messages and moves.
Status Beats::Arrange(bool arrivals) {
  lists_.assign(static_cast<size_t>(beats_) * moves_.size(), LaneBeat{});
  first_message_.assign(static_cast<size_t>(beats_) + 1, 0);
  if (placement_.row_bytes() == 0) return Status::Ok();  // nothing to move
  std::sort(keys_.begin(), keys_.end());
  FindParcels();
  if (Status status = TakeBuffers(arrivals); !status.ok()) return status;
  posted_.clear();
  last_way_ = {-1, -1};
  int32_t beat = 0;
  for (const Parcel& parcel : parcels_) {
    if (parcel.beat != beat) {
      if (Status status = EndBeat(beat); !status.ok()) return status;
      beat = parcel.beat;
    }
    if (parcel.kind == kCopy) {
      AddCopies(parcel);
    } else if (Status status = MakeMessage(parcel, arrivals); !status.ok()) {
      return status;
    }
  }
  if (Status status = EndBeat(beat); !status.ok()) return status;
  for (size_t i = 0; i < static_cast<size_t>(beats_); ++i) first_message_[i + 1] += first_message_[i];
  return Status::Ok();
}

// What another process's device gets lies where this lane finds it.
void Beats::AddCopies(const Parcel& parcel) {
  const int32_t lane = layout_->lane_of[static_cast<size_t>(parcel.here)];
  MoveList* list = &ListsOf(parcel.beat, lane).copy;
  for (int64_t i = parcel.first_key; i < parcel.first_key + parcel.keys; ++i) {
    const Transfer& transfer = TransferOf(keys_[static_cast<size_t>(i)]);
    const Part part = transfer.dst_row == Transfer::kInPlace ? kDestination : kStaging;
    const ptrdiff_t shift = layout_->ShiftOf(lane, transfer.dst, part);
    placement_.ForEachCopy(transfer, [&](const CopyOp& op) { AddMove(lane, list, op.dst + shift, op.src, op.bytes); });
  }
}

void Beats::FindParcels() {
  uint64_t before = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const uint64_t key = keys_[i];
    if (i == 0 || key >> kIndexBits != before >> kIndexBits) {
      const uint64_t ends = key >> (kIndexBits + kPhaseBits);
      const auto kind = static_cast<Kind>(Low(ends >> (2 * kRankBits), kKindBits));
      parcels_.push_back({static_cast<int32_t>(ends >> (2 * kRankBits + kKindBits)), kind,
                          static_cast<int32_t>(Low(ends >> kRankBits, kRankBits)),
                          static_cast<int32_t>(Low(ends, kRankBits)), static_cast<int64_t>(i), 0});
    }
    ++parcels_.back().keys;
    before = key;
  }
  for (Parcel& parcel : parcels_) {
    if (parcel.kind == kCopy) continue;
    ForEachPiece(parcel, [&](const std::byte*, int64_t bytes) {
      ++parcel.pieces;
      parcel.bytes += bytes;
    });
  }
}

template <typename Visit>
void Beats::ForEachPiece(const Parcel& parcel, Visit visit) const {
  for (int64_t i = parcel.first_key; i < parcel.first_key + parcel.keys; ++i) {
    const Transfer& transfer = TransferOf(keys_[static_cast<size_t>(i)]);
    if (parcel.kind == kSend) {
      // The kernels' lists have one type of pointer for what they read and what they write.
      placement_.ForEachSource(transfer, [&](const std::byte* at, int64_t bytes) {
        visit(const_cast<std::byte*>(at), bytes);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      });
    } else {
      placement_.ForEachDestination(transfer, visit);
    }
  }
}

// A lane's buffers serve one beat after the other: nothing is packed before the messages of the beat before have moved.
Status Beats::TakeBuffers(bool arrivals) {
  std::vector<int64_t> used(buffers_.size(), 0);
  std::vector<int64_t> most(buffers_.size(), 0);
  int32_t beat = 0;
  for (Parcel& parcel : parcels_) {
    if (parcel.kind == kCopy) continue;
    if (parcel.beat != beat) std::fill(used.begin(), used.end(), 0);
    beat = parcel.beat;
    const bool arrives = arrivals && parcel.kind == kReceive;
    if (parcel.pieces == 1 && !arrives) continue;
    const size_t slot = SlotOf(parcel);
    parcel.buffer = used[slot];
    used[slot] += Aligned(parcel.bytes);
    most[slot] = std::max(most[slot], used[slot]);
  }
  for (size_t slot = 0; slot < most.size(); ++slot) {
    if (most[slot] == 0) continue;
    buffers_[slot] = layout_->lanes[slot / 2]->allocate(static_cast<size_t>(most[slot]));
    if (buffers_[slot] != nullptr) continue;
    return Status::Internal(site_->Prefix() + "no memory for " + std::to_string(most[slot]) +
                            " bytes of messages on a device; leave more to it, or split the exchange.");
  }
  return Status::Ok();
}

size_t Beats::SlotOf(const Parcel& parcel) const {
  const auto lane = static_cast<size_t>(layout_->lane_of[static_cast<size_t>(parcel.here)]);
  return 2 * lane + static_cast<size_t>(parcel.kind);
}

std::byte* Beats::BufferOf(const Parcel& parcel) const { return buffers_[SlotOf(parcel)] + parcel.buffer; }

Status Beats::MakeMessage(const Parcel& parcel, bool arrivals) {
  const int32_t lane = layout_->lane_of[static_cast<size_t>(parcel.here)];
  const bool sends = parcel.kind == kSend;
  std::byte* data = nullptr;
  if (parcel.buffer >= 0) {
    data = BufferOf(parcel);
    LaneBeat& lists = ListsOf(parcel.beat, lane);
    std::byte* next = data;
    if (sends || !arrivals) {
      ForEachPiece(parcel, [&](std::byte* at, int64_t bytes) {
        sends ? AddMove(lane, &lists.pack, next, at, bytes) : AddMove(lane, &lists.unpack, at, next, bytes);
        next += bytes;
      });
    }
  } else {
    ForEachPiece(parcel, [&](std::byte* at, int64_t) { data = at; });
  }
  if (layout_->lane_of[static_cast<size_t>(parcel.peer)] == lane) return Deliver(parcel, data);
  messages_.push_back({sends, parcel.here, parcel.peer, lane, data, parcel.bytes, parcel.beat});
  ++first_message_[static_cast<size_t>(parcel.beat) + 1];
  return Status::Ok();
}

// Between ranks that are played on one stream. Of a beat, all that is sent comes before all that is received.
Status Beats::Deliver(const Parcel& parcel, std::byte* data) {
  if (parcel.kind == kSend) {
    posted_.push_back({{parcel.here, parcel.peer}, data, parcel.bytes, nullptr});
    return Status::Ok();
  }
  const std::pair way(parcel.peer, parcel.here);
  of_last_way_ = way == last_way_ ? of_last_way_ + 1 : 0;
  last_way_ = way;
  const auto first = std::lower_bound(posted_.begin(), posted_.end(), way,
                                      [](const Posted& posted, const auto& wanted) { return posted.way < wanted; });
  const auto left = static_cast<size_t>(posted_.end() - first);
  if (of_last_way_ >= left) return Disagree(way);
  Posted& posted = first[static_cast<std::ptrdiff_t>(of_last_way_)];
  if (posted.way != way || posted.bytes != parcel.bytes) return Disagree(way);
  posted.target = data;
  return Status::Ok();
}

// Runs of one list lie together: these come behind what their messages are packed from and unpacked to.
Status Beats::EndBeat(int32_t beat) {
  for (const Posted& posted : posted_) {
    if (posted.target == nullptr) return Disagree(posted.way);
    const int32_t lane = layout_->lane_of[static_cast<size_t>(posted.way.second)];
    AddMove(lane, &ListsOf(beat, lane).deliver, posted.target, posted.data, posted.bytes);
  }
  posted_.clear();
  last_way_ = {-1, -1};
  return Status::Ok();
}

Status Beats::Disagree(const std::pair<int32_t, int32_t>& way) const {
  return Status::Invalid(site_->Prefix() + "the tables of ranks " + std::to_string(way.first) + " and " +
                         std::to_string(way.second) +
                         " disagree on what the first sends to the second. Pass what "
                         "plan_ragged_all_to_all returned, unchanged.");
}

void Beats::AddMove(int32_t lane, MoveList* list, std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes == 0) return;
  auto& moves = moves_[static_cast<size_t>(lane)];
  if (list->count == 0) list->first = static_cast<int64_t>(moves.size());
  const int64_t begin = kernels::NextBegin(list->end, dst);
  moves.push_back({dst, src, begin, bytes});
  list->end = begin + bytes;
  list->bytes += bytes;
  ++list->count;
}

}  // namespace fastjax::transport::gpu
