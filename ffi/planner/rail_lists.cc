#include "planner/rail_lists.h"

#include <algorithm>

namespace fastjax::planner {

RailLists::RailLists(Tiles* tiles)
    : tiles_(tiles), servers_(tiles->topology().servers), m_(tiles->topology().devices_per_server) {}

size_t RailLists::Slot(int32_t source, int32_t target) const {
  if (device_ == kEveryDevice) return static_cast<size_t>(tiles_->PairOf(source, target));
  return static_cast<size_t>(source == server_ ? target : servers_ + source);
}

void RailLists::Prepare(int32_t device) {
  const bool every = device == kEveryDevice;
  device_ = device;
  server_ = every ? 0 : tiles_->topology().server_of(device);
  local_ = every ? 0 : tiles_->topology().local_of(device);
  if (every) {
    tiles_->PrepareAll();
  } else {
    tiles_->PrepareDevice(device);
  }
  const size_t slots = static_cast<size_t>(servers_) * (every ? servers_ : 2);
  if (sent_.size() < slots) sent_.resize(slots);
  for (auto* lists : {&balance_, &scale_out_, &redistribute_}) {
    if (lists->size() < slots * m_) lists->resize(slots * m_);
  }
  // A segment is balanced once and redistributed once at most; one more is written before it is known to be needed.
  const size_t hops = 2 * static_cast<size_t>(tiles_->num_segments()) + 1;
  if (hops_.size() < hops) hops_.resize(2 * hops);
  hops_used_ = 0;
  for (int32_t one = 0; one < servers_; ++one) {
    for (int32_t other = 0; every && other < servers_; ++other) PreparePair(one, other);
    if (every) continue;
    PreparePair(server_, one);
    PreparePair(one, server_);
  }
}

void RailLists::PreparePair(int32_t source, int32_t target) {
  const size_t slot = Slot(source, target);
  sent_[slot] = 0;
  if (tiles_->sum(tiles_->PairOf(source, target)) == 0) return;
  const Rail* rails = tiles_->rails(source, target);
  for (int32_t rail = 0; rail < m_; ++rail) {
    const size_t index = slot * m_ + rail;
    const bool empty = rails[rail].first == rails[rail].end;
    scale_out_[index] = {rails[rail].first, rails[rail].end, empty ? Remaining::kNothing : 0};
    balance_[index] = {};
    redistribute_[index] = {};
    if (Wanted(source)) ListHops(source, target, rail, rail, &Segment::origin, &balance_[index]);
    if (Wanted(target)) {
      const int32_t receiver = tiles_->ReceiverOf(source, target, rail);
      ListHops(source, target, rail, receiver, &Segment::target, &redistribute_[index]);
    }
  }
}

// A device takes part in few of its server's local hops: on the rail that ends at it in those that start or end
// elsewhere, on others in those that do so here. They are picked out once, instead of in every stage.
void RailLists::ListHops(int32_t source, int32_t target, int32_t rail, int32_t end_local, int32_t Segment::* end,
                         Remaining* list) {
  const Rail& whole = tiles_->rails(source, target)[rail];
  const bool own = device_ == kEveryDevice || local_ == end_local;
  const int32_t partner = own ? end_local : local_;
  const int32_t first = hops_used_;
  for (int32_t i = whole.first; i < whole.end; ++i) {
    hops_[hops_used_] = i;
    hops_used_ += (tiles_->segment(i).*end == partner) != own;
  }
  const int64_t position = hops_used_ > first ? tiles_->segment(hops_[first]).position : Remaining::kNothing;
  *list = {first, hops_used_, position};
}

Slice RailLists::Next(int32_t source, int32_t target, int64_t units) {
  int64_t* sent = &sent_[Slot(source, target)];
  const int64_t begin = *sent;
  *sent = std::min(begin + units, tiles_->units()[tiles_->PairOf(source, target)]);
  return {source, target, begin, *sent};
}

RailLists::Range RailLists::RowsOf(const Slice& slice, int32_t rail) const {
  if (tiles_->topology().equal_nics()) return {slice.begin, slice.end};  // no segment lies beyond its rail's rows
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const int64_t rows = tiles_->rails(slice.source, slice.target)[rail].rows;
  return {tiles_->PositionOf(pair, rows, slice.begin), tiles_->PositionOf(pair, rows, slice.end)};
}

// Writes the pieces of a list that fall into the range, and drops from the list what the range uses up. segment_at(i)
// is the list's i-th, write(segment, from, rows) the transfer of rows from position `from` on.
template <typename SegmentAt, typename Write>
void RailLists::AppendPieces(Range range, Remaining* list, TransferBuffer* out, SegmentAt segment_at, Write write) {
  if (list->position >= range.end || range.begin >= range.end) return;
  Transfer* next = out->Reserve(list->end - list->next);
  while (list->position < range.end) {
    const Segment& segment = segment_at(list->next);
    const int64_t segment_end = segment.position + segment.rows;
    const int64_t from = std::max(segment.position, range.begin);
    *next++ = write(segment, from, std::min(segment_end, range.end) - from);
    if (segment_end > range.end) break;
    ++list->next;
    list->position = list->next < list->end ? segment_at(list->next).position : Remaining::kNothing;
  }
  out->Commit(next);
}

void RailLists::AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.source)) return;
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const size_t first = Slot(slice.source, slice.target) * m_;
  const int64_t base = tiles_->send_base(tiles_->PairOf(slice.source, slice.target));
  const auto segment_at = [&](int32_t i) -> const Segment& { return tiles_->segment(hops_[i]); };
  for (int32_t rail = 0; rail < m_; ++rail) {
    const auto write = [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      return {Phase::kBalance,
              stage,
              source + segment.origin,
              source + rail,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              Transfer::kInPlace,
              base + from};
    };
    AppendPieces(RowsOf(slice, rail), &balance_[first + rail], out, segment_at, write);
  }
}

void RailLists::AppendScaleOut(const Slice& slice, int32_t stage, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const size_t first = Slot(slice.source, slice.target) * m_;
  const auto segment_at = [&](int32_t i) -> const Segment& { return tiles_->segment(i); };
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int32_t receiver = tiles_->ReceiverOf(slice.source, slice.target, rail);
    if (device_ != kEveryDevice && device_ != source + rail && device_ != target + receiver) continue;
    const auto write = [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      return {Phase::kScaleOut,
              stage,
              source + rail,
              target + receiver,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              segment.origin == rail ? Transfer::kInPlace : tiles_->send_base(pair) + from,
              segment.target == receiver ? Transfer::kInPlace : tiles_->receive_base(pair) + from};
    };
    AppendPieces(RowsOf(slice, rail), &scale_out_[first + rail], out, segment_at, write);
  }
}

void RailLists::AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.target)) return;
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const size_t first = Slot(slice.source, slice.target) * m_;
  const int64_t base = tiles_->receive_base(tiles_->PairOf(slice.source, slice.target));
  const auto segment_at = [&](int32_t i) -> const Segment& { return tiles_->segment(hops_[i]); };
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int32_t receiver = tiles_->ReceiverOf(slice.source, slice.target, rail);
    const auto write = [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      return {Phase::kRedistribute,
              stage,
              target + receiver,
              target + segment.target,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              base + from,
              Transfer::kInPlace};
    };
    AppendPieces(RowsOf(slice, rail), &redistribute_[first + rail], out, segment_at, write);
  }
}

}  // namespace fastjax::planner
