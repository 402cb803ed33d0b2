#include "planner/rail_lists.h"

#include <algorithm>

namespace fastjax::planner {

RailLists::RailLists(Tiles* tiles)
    : tiles_(tiles),
      servers_(tiles->topology().servers),
      m_(tiles->topology().devices_per_server),
      equal_nics_(tiles->topology().equal_nics()),
      due_(m_ + 1) {}

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
  ReserveEntries(tiles_->num_segments());
  for (int32_t one = 0; one < servers_; ++one) {
    for (int32_t other = 0; every && other < servers_; ++other) PreparePair(one, other);
    if (every) continue;
    PreparePair(server_, one);
    PreparePair(one, server_);
  }
}

// Room for every segment as itself, and to be balanced once and redistributed once at most; one more is written before
// it is known to be needed.
void RailLists::ReserveEntries(int32_t segments) {
  const size_t needed = 3 * static_cast<size_t>(segments) + 1;
  if (entries_.size() < needed) {
    entries_.resize(2 * needed);
    for (int32_t i = all_; i < 2 * segments; ++i) entries_[i] = i;
    all_ = std::max(all_, 2 * segments);
  }
  used_ = all_;
}

void RailLists::PreparePair(int32_t source, int32_t target) {
  const size_t slot = Slot(source, target);
  sent_[slot] = 0;
  if (tiles_->sum(tiles_->PairOf(source, target)) == 0) return;
  const Rail* rails = tiles_->rails(source, target);
  Remaining* balance = &balance_[slot * m_];
  Remaining* scale_out = &scale_out_[slot * m_];
  Remaining* redistribute = &redistribute_[slot * m_];
  const bool only = device_ != kEveryDevice && tiles_->OnlyOf(device_);
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

RailLists::Remaining RailLists::Whole(const Rail& rail) const {
  return {rail.first, rail.end, rail.first == rail.end ? Remaining::kNothing : tiles_->segment(rail.first).position};
}

// A device takes part in few of its server's local hops: on the rail that ends at it in those that start or end
// elsewhere, on others in those that do so here. They are picked out once, instead of in every stage.
RailLists::Remaining RailLists::Hops(const Rail& rail, int32_t end_local, int32_t Segment::* end) {
  const bool own = device_ == kEveryDevice || local_ == end_local;
  const int32_t partner = own ? end_local : local_;
  const Segment* segments = &tiles_->segment(0);
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

Slice RailLists::Next(int32_t source, int32_t target, int64_t units) {
  int64_t* sent = &sent_[Slot(source, target)];
  const int64_t begin = *sent;
  *sent = std::min(begin + units, tiles_->units()[tiles_->PairOf(source, target)]);
  return {source, target, begin, *sent};
}

RailLists::Range RailLists::RowsOf(const Slice& slice, int32_t rail) const {
  if (equal_nics_) return {slice.begin, slice.end};  // no segment lies beyond its rail's rows
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const int64_t rows = tiles_->rails(slice.source, slice.target)[rail].rows;
  return {tiles_->PositionOf(pair, rows, slice.begin), tiles_->PositionOf(pair, rows, slice.end)};
}

// Collects the rails [begin, end) whose list has something in the slice: that is as good as random, so without
// branches.
int32_t RailLists::FindDue(const Slice& slice, const Remaining* lists, int32_t begin, int32_t end) {
  int32_t* due = due_.data();
  int32_t count = 0;
  for (int32_t rail = begin; rail < end; ++rail) {
    due[count] = rail;
    count += lists[rail].position < RowsOf(slice, rail).end;
  }
  return count;
}

// Writes the pieces of the rails' lists that fall into the slice, and drops from the lists what it uses up.
// write(rail, segment, from, rows) is the transfer of rows from position `from` on.
template <typename Write>
void RailLists::AppendPieces(const Slice& slice, int32_t begin, int32_t end, std::vector<Remaining>* all,
                             TransferBuffer* out, Write write) {
  Remaining* lists = &(*all)[Slot(slice.source, slice.target) * m_];
  const Segment* segments = &tiles_->segment(0);
  const int32_t* entries = entries_.data();
  const int32_t due = FindDue(slice, lists, begin, end);
  for (int32_t i = 0; i < due; ++i) {
    const int32_t rail = due_[i];
    const Range range = RowsOf(slice, rail);
    if (range.begin >= range.end) continue;
    Remaining list = lists[rail];
    Transfer* const first = out->Reserve(list.end - list.next);
    Transfer* next = first;
    while (list.position < range.end) {
      const Segment& segment = segments[entries[list.next]];
      const int64_t segment_end = segment.position + segment.rows;
      const int64_t from = std::max(segment.position, range.begin);
      *next++ = write(rail, segment, from, std::min(segment_end, range.end) - from);
      if (segment_end > range.end) break;
      ++list.next;
      list.position = list.next < list.end ? segments[entries[list.next]].position : Remaining::kNothing;
    }
    lists[rail] = list;
    out->Commit(next);
  }
}

void RailLists::AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.source)) return;
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int64_t base = tiles_->send_base(tiles_->PairOf(slice.source, slice.target));
  const auto write = [=](int32_t rail, const Segment& segment, int64_t from, int64_t rows) -> Transfer {
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
  AppendPieces(slice, 0, m_, &balance_, out, write);
}

void RailLists::AppendScaleOut(const Slice& slice, int32_t stage, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int32_t pair = tiles_->PairOf(slice.source, slice.target);
  const int64_t send_base = tiles_->send_base(pair);
  const int64_t receive_base = tiles_->receive_base(pair);
  const auto append = [&](int32_t begin, int32_t end, int32_t beyond) {
    const auto write = [=](int32_t rail, const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      const int32_t receiver = rail + beyond;
      return {Phase::kScaleOut,
              stage,
              source + rail,
              target + receiver,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              segment.origin == rail ? Transfer::kInPlace : send_base + from,
              segment.target == receiver ? Transfer::kInPlace : receive_base + from};
    };
    AppendPieces(slice, begin, end, &scale_out_, out, write);
  };
  // Where all NICs are equal, a device sends and receives on its own rail.
  if (equal_nics_) return device_ == kEveryDevice ? append(0, m_, 0) : append(local_, local_ + 1, 0);
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int32_t receiver = tiles_->ReceiverOf(slice.source, slice.target, rail);
    if (device_ != kEveryDevice && device_ != source + rail && device_ != target + receiver) continue;
    append(rail, rail + 1, receiver - rail);
  }
}

void RailLists::AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out) {
  if (!Wanted(slice.target)) return;
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int64_t base = tiles_->receive_base(tiles_->PairOf(slice.source, slice.target));
  const bool straight = equal_nics_;
  const auto write = [=](int32_t rail, const Segment& segment, int64_t from, int64_t rows) -> Transfer {
    return {Phase::kRedistribute,
            stage,
            target + (straight ? rail : tiles_->ReceiverOf(slice.source, slice.target, rail)),
            target + segment.target,
            source + segment.origin,
            target + segment.target,
            segment.first_row + from - segment.position,
            rows,
            base + from,
            Transfer::kInPlace};
  };
  AppendPieces(slice, 0, m_, &redistribute_, out, write);
}

void RailSchedule::Append(int32_t device, TransferBuffer* out) {
  AppendLocal(topology_, tiles_->traffic(), device, out);
  lists_.Prepare(device);
  for (int32_t stage = 0; stage < num_stages(); ++stage) {
    slices_.clear();
    CollectSlices(stage, device, &slices_);
    for (const Slice& slice : slices_) lists_.AppendBalance(slice, stage, out);
    for (const Slice& slice : slices_) lists_.AppendScaleOut(slice, stage, out);
    for (const Slice& slice : slices_) lists_.AppendRedistribute(slice, stage, out);
  }
}

}  // namespace fastjax::planner
