#include "planner/rail_schedule.h"

#include <algorithm>
#include <utility>

namespace fastjax::planner {
namespace {

// Rails of all pairs are kept where there are no more than this.
constexpr int64_t kMaxDenseRails = int64_t{1} << 16;
constexpr size_t kMaxSpareSegments = size_t{1} << 20;

}  // namespace

RailSchedule::RailSchedule(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common)
    : topology_(tiles->topology()),
      pricing_(topology_, row_bytes),
      tiles_(std::move(tiles)),
      in_common_(in_common),
      servers_(topology_.servers),
      m_(topology_.devices_per_server),
      equal_nics_(topology_.equal_nics()),
      due_(m_ + 1),
      quotas_(m_),
      dense_(int64_t{servers_} * servers_ * m_ <= kMaxDenseRails) {}

void RailSchedule::PlanTiles(const int64_t* traffic) {
  if (!in_common_) tiles_->Plan(traffic);
  Forget();
}

void RailSchedule::Forget() {
  std::fill(filled_.begin(), filled_.end(), 0);
  segments_used_ = 0;
  filled_server_ = filled_device_ = kNobody;
  asked_ = false;
}

void RailSchedule::Prepare(const int64_t* traffic, int32_t device) {
  device_ = device;
  server_ = device == kEveryDevice ? 0 : topology_.server_of(device);
  local_ = device == kEveryDevice ? 0 : topology_.local_of(device);
  FillTiles(traffic);
  ReserveEntries(segments_used_);
  ForEachPair([&](int32_t source, int32_t target) { PreparePair(source, target); });
}

// Pairs that are listed.
template <typename Visit>
void RailSchedule::ForEachPair(Visit visit) {
  for (int32_t one = 0; one < servers_; ++one) {
    for (int32_t other = 0; device_ == kEveryDevice && other < servers_; ++other) visit(one, other);
    if (device_ == kEveryDevice) continue;
    visit(server_, one);
    visit(one, server_);
  }
}

// The first device that is asked for gets what it needs only; if others follow, what they need is made for all devices
// of their server.
void RailSchedule::FillTiles(const int64_t* traffic) {
  if (device_ == filled_device_) return;
  // A rail that ends elsewhere than it starts is another device's own at either end.
  const bool only = !asked_ && equal_nics_ && device_ != kEveryDevice;
  const bool grows = device_ == kEveryDevice && !dense_;
  if (grows || filled_device_ != kNobody || (!dense_ && server_ != filled_server_)) Forget();
  dense_ = dense_ || grows;
  asked_ = true;
  filled_server_ = server_;
  filled_device_ = only ? device_ : kNobody;
  const size_t slots = static_cast<size_t>(servers_) * (dense_ ? servers_ : 2);
  if (filled_.size() < slots) {
    filled_.resize(slots);
    rails_.resize(slots * m_);
    for (auto* lists : {&balance_, &scale_out_, &redistribute_}) lists->resize(slots * m_);
  }
  const Viewer sender = {local_, true};
  const Viewer receiver = {local_, false};
  ForEachPair([&](int32_t source, int32_t target) {
    FillTile(traffic, source, target, only ? (source == server_ ? &sender : &receiver) : nullptr);
  });
}

void RailSchedule::FillTile(const int64_t* traffic, int32_t source, int32_t target, const Viewer* viewer) {
  const size_t slot = Slot(source, target);
  if (filled_[slot] != 0 || tiles_->sum(tiles_->PairOf(source, target)) == 0) return;
  filled_[slot] = 1;
  RailFiller* filler = tiles_->filler();
  const size_t needed = segments_used_ + filler->max_segments();
  if (segments_.size() < needed) segments_.resize(needed + std::min<size_t>(needed, kMaxSpareSegments));
  const int64_t devices = topology_.devices();
  const int64_t* tile = traffic + (source * devices + target) * m_;
  tiles_->FillQuotas(source, target, tile, quotas_.data());
  segments_used_ =
      filler->Fill(tile, devices, quotas_.data(), viewer, &rails_[slot * m_], segments_.data(), segments_used_);
}

// Room for every segment as itself, and to be balanced once and redistributed once at most; one more is written before
// it is known to be needed.
void RailSchedule::ReserveEntries(int32_t segments) {
  const size_t needed = 3 * static_cast<size_t>(segments) + 1;
  if (entries_.size() < needed) {
    entries_.resize(2 * needed);
    for (int32_t i = all_; i < 2 * segments; ++i) entries_[i] = i;
    all_ = std::max(all_, 2 * segments);
  }
  used_ = all_;
}

void RailSchedule::PreparePair(int32_t source, int32_t target) {
  const size_t slot = Slot(source, target);
  if (tiles_->sum(tiles_->PairOf(source, target)) == 0) return;
  const Rail* rails = &rails_[slot * m_];
  Remaining* balance = &balance_[slot * m_];
  Remaining* scale_out = &scale_out_[slot * m_];
  Remaining* redistribute = &redistribute_[slot * m_];
  // Whether rails other than the device's own list only what starts, or ends, at it.
  const bool only = device_ == filled_device_ && tiles_->filler()->heeds_viewer();
  for (int32_t rail = 0; rail < m_; ++rail) {
    const Remaining whole = Whole(rails[rail]);
    if (only && rail != local_) {
      (source == server_ ? balance : redistribute)[rail] = whole;
      continue;
    }
    scale_out[rail] = whole;
    if (Wanted(source)) balance[rail] = Hops(rails[rail], rail, &Segment::origin);
    if (Wanted(target)) {
      redistribute[rail] = Hops(rails[rail], tiles_->ReceiverOf(source, target, rail), &Segment::target);
    }
  }
}

RailSchedule::Remaining RailSchedule::Whole(const Rail& rail) const {
  return {rail.first, rail.end, rail.first == rail.end ? Remaining::kNothing : segments_[rail.first].position};
}

// A device takes part in few of its server's local hops: on the rail that ends at it in those that start or end
// elsewhere, on others in those that do so here. They are picked out once, instead of in every stage.
RailSchedule::Remaining RailSchedule::Hops(const Rail& rail, int32_t end_local, int32_t Segment::* end) {
  const bool own = device_ == kEveryDevice || local_ == end_local;
  const int32_t partner = own ? end_local : local_;
  const Segment* segments = segments_.data();
  int32_t* hops = entries_.data() + used_;
  int32_t count = 0;
  for (int32_t i = rail.first; i < rail.end; ++i) {
    hops[count] = i;
    count += (segments[i].*end == partner) != own;
  }
  const int32_t first = used_;
  used_ += count;
  return {first, used_, count > 0 ? segments[hops[0]].position : Remaining::kNothing};
}

RailSchedule::Span RailSchedule::RowsOf(const Slice& slice, int32_t rail) const {
  if (equal_nics_) return {slice.begin, slice.end};  // no segment lies beyond its rail's rows
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const int64_t rows = rails_[Slot(slice.source, slice.target) * m_ + rail].rows;
  return {tiles_->PositionOf(pair, rows, slice.begin), tiles_->PositionOf(pair, rows, slice.end)};
}

// Collects the rails [begin, end) whose list has something in the slice: that is as good as random, so without
// branches.
int32_t RailSchedule::FindDue(const Slice& slice, const Remaining* lists, int32_t begin, int32_t end) {
  int32_t* due = due_.data();
  int32_t count = 0;
  for (int32_t rail = begin; rail < end; ++rail) {
    due[count] = rail;
    count += lists[rail].position < RowsOf(slice, rail).end;
  }
  return count;
}

// Writes the pieces of the rails' lists that fall into the slice, and drops from the lists what it uses up.
// ends(rail, segment, from) says where rows from position `from` on come from and go to.
template <typename FindEnds>
void RailSchedule::AppendPieces(const Slice& slice, Phase phase, int32_t stage, int32_t begin, int32_t end,
                                std::vector<Remaining>* all, TransferBuffer* out, FindEnds find_ends) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  Remaining* lists = &(*all)[Slot(slice.source, slice.target) * m_];
  const Segment* segments = segments_.data();
  const int32_t* entries = entries_.data();
  const int32_t due = FindDue(slice, lists, begin, end);
  for (int32_t i = 0; i < due; ++i) {
    const int32_t rail = due_[i];
    const Span range = RowsOf(slice, rail);
    if (range.begin >= range.end) continue;
    Remaining list = lists[rail];
    Transfer* const first = out->Reserve(list.end - list.next);
    Transfer* next = first;
    while (list.position < range.end) {
      const Segment& segment = segments[entries[list.next]];
      const int64_t segment_end = segment.position + segment.rows;
      const int64_t from = std::max(segment.position, range.begin);
      const Ends ends = find_ends(rail, segment, from);
      *next++ = {phase,
                 stage,
                 ends.src,
                 ends.dst,
                 source + segment.origin,
                 target + segment.target,
                 segment.first_row + from - segment.position,
                 std::min(segment_end, range.end) - from,
                 ends.src_row,
                 ends.dst_row};
      if (segment_end > range.end) break;
      ++list.next;
      list.position = list.next < list.end ? segments[entries[list.next]].position : Remaining::kNothing;
    }
    lists[rail] = list;
    out->Commit(next);
  }
}

void RailSchedule::AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.source)) return;
  const int32_t source = slice.source * m_;
  const int64_t base = tiles_->send_base(tiles_->PairOf(slice.source, slice.target));
  AppendPieces(slice, Phase::kBalance, stage, 0, m_, &balance_, out,
               [=](int32_t rail, const Segment& segment, int64_t from) -> Ends {
                 return {source + segment.origin, source + rail, Transfer::kInPlace, base + from};
               });
}

void RailSchedule::AppendScaleOut(const Slice& slice, int32_t stage, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const int64_t send_base = tiles_->send_base(pair);
  const int64_t receive_base = tiles_->receive_base(pair);
  const auto append = [&](int32_t begin, int32_t end, int32_t beyond) {
    AppendPieces(slice, Phase::kScaleOut, stage, begin, end, &scale_out_, out,
                 [=](int32_t rail, const Segment& segment, int64_t from) -> Ends {
                   const int32_t receiver = rail + beyond;
                   return {source + rail, target + receiver,
                           segment.origin == rail ? Transfer::kInPlace : send_base + from,
                           segment.target == receiver ? Transfer::kInPlace : receive_base + from};
                 });
  };
  // Where all NICs are equal, a device sends and receives on its own rail.
  if (equal_nics_) return device_ == kEveryDevice ? append(0, m_, 0) : append(local_, local_ + 1, 0);
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int32_t receiver = tiles_->ReceiverOf(slice.source, slice.target, rail);
    if (device_ != kEveryDevice && device_ != source + rail && device_ != target + receiver) continue;
    append(rail, rail + 1, receiver - rail);
  }
}

void RailSchedule::AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.target)) return;
  const int32_t target = slice.target * m_;
  const int64_t base = tiles_->receive_base(tiles_->PairOf(slice.source, slice.target));
  const bool straight = equal_nics_;
  AppendPieces(slice, Phase::kRedistribute, stage, 0, m_, &redistribute_, out,
               [=](int32_t rail, const Segment& segment, int64_t from) -> Ends {
                 const int32_t holder = straight ? rail : tiles_->ReceiverOf(slice.source, slice.target, rail);
                 return {target + holder, target + segment.target, base + from, Transfer::kInPlace};
               });
}

void RailSchedule::Append(const int64_t* traffic, int32_t device, TransferBuffer* out) {
  AppendLocal(topology_, traffic, device, out);
  Prepare(traffic, device);
  const int32_t server = device == kEveryDevice ? kEveryDevice : topology_.server_of(device);
  for (int32_t stage = 0; stage < num_stages(); ++stage) {
    slices_.clear();
    CollectSlices(stage, server, &slices_);
    for (const Slice& slice : slices_) AppendBalance(slice, stage, out);
    for (const Slice& slice : slices_) AppendScaleOut(slice, stage, out);
    for (const Slice& slice : slices_) AppendRedistribute(slice, stage, out);
  }
}

}  // namespace fastjax::planner
