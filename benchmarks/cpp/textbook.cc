#include "textbook.h"

#include <algorithm>
#include <cstdlib>

namespace fastjax::bench {

using planner::Phase;
using planner::Topology;
using planner::Transfer;

Textbook::Textbook(const Topology& topology, Search search)
    : topology_(topology),
      n_(topology.servers),
      m_(topology.devices_per_server),
      matching_(std::in_place_type<Kuhn>, n_) {
  if (search == Search::kHopcroftKarp) matching_.emplace<HopcroftKarp>(n_);
  const size_t pairs = static_cast<size_t>(n_) * n_;
  for (auto* per_pair : {&sums_, &left_, &sent_}) per_pair->resize(pairs);
  for (auto* per_server : {&row_room_, &column_room_}) per_server->resize(n_);
  for (auto* per_rail : {&send_base_, &receive_base_}) per_rail->resize(pairs * m_);
  lists_.resize(pairs * m_);
  staging_rows_.resize(topology.devices());
  for (auto* per_local : {&row_sums_, &taken_}) per_local->resize(m_);
}

void Textbook::Decompose(const int64_t* traffic) {
  traffic_ = traffic;
  SumTiles();
  Pad();
  std::visit([this](auto& matching) { Peel(&matching); }, matching_);
}

void Textbook::SumTiles() {
  std::fill(sums_.begin(), sums_.end(), 0);
  const int64_t* row = traffic_;
  for (int32_t device = 0; device < topology_.devices(); ++device) {
    int64_t* sums = &sums_[Pair(topology_.server_of(device), 0)];
    for (int32_t target = 0; target < n_; ++target, row += m_) {
      for (int32_t local = 0; local < m_; ++local) sums[target] += row[local];
    }
  }
  for (int32_t server = 0; server < n_; ++server) sums_[Pair(server, server)] = 0;
}

// Rows that the busiest rail carries for each pair, filled up until every server sends and receives as many.
void Textbook::Pad() {
  std::fill(row_room_.begin(), row_room_.end(), 0);
  std::fill(column_room_.begin(), column_room_.end(), 0);
  for (int32_t source = 0; source < n_; ++source) {
    for (int32_t target = 0; target < n_; ++target) {
      const int64_t rows = Quota(Pair(source, target), 0);
      left_[Pair(source, target)] = rows;
      row_room_[source] += rows;
      column_room_[target] += rows;
    }
  }
  length_ = std::max(*std::max_element(row_room_.begin(), row_room_.end()),
                     *std::max_element(column_room_.begin(), column_room_.end()));
  for (auto* rooms : {&row_room_, &column_room_}) {
    for (int64_t& room : *rooms) room = length_ - room;
  }
  for (int32_t source = 0; source < n_; ++source) {
    for (int32_t target = 0; target < n_; ++target) {
      const int64_t rows = std::min(row_room_[source], column_room_[target]);
      left_[Pair(source, target)] += rows;
      row_room_[source] -= rows;
      column_room_[target] -= rows;
    }
  }
}

// Birkhoff: entries that are not zero hold a perfect matching as long as all line sums are equal; each stage is one,
// as long as its smallest entry.
template <typename Matching>
void Textbook::Peel(Matching* matching) {
  targets_.clear();
  sources_.clear();
  weights_.clear();
  matching->Begin(left_.data());
  for (int64_t rows = length_; rows > 0; rows -= weights_.back()) {
    if (matching->Solve() < n_) std::abort();
    int64_t weight = rows;
    for (int32_t source = 0; source < n_; ++source) {
      weight = std::min(weight, left_[Pair(source, matching->column_of(source))]);
    }
    const size_t first = targets_.size();
    targets_.resize(first + n_);
    sources_.resize(first + n_);
    for (int32_t source = 0; source < n_; ++source) {
      const int32_t target = matching->column_of(source);
      targets_[first + source] = target;
      sources_[first + target] = source;
      int64_t& left = left_[Pair(source, target)];
      left -= weight;
      if (left == 0) matching->Exhaust(source, target);
    }
    weights_.push_back(weight);
  }
}

const std::vector<Transfer>& Textbook::List(int32_t device) {
  transfers_.clear();
  segments_.clear();
  SetStaging();
  const int32_t server = topology_.server_of(device);
  for (int32_t other = 0; other < n_; ++other) {
    if (other == server) continue;
    Balance(server, other);
    Balance(other, server);
  }
  ListLocal(device);
  for (int32_t stage = 0; stage < num_stages(); ++stage) ListStage(stage, server, topology_.local_of(device));
  return transfers_;
}

// What a device sends, by target server, and behind it what it receives, by source server.
void Textbook::SetStaging() {
  std::fill(staging_rows_.begin(), staging_rows_.end(), 0);
  for (int32_t source = 0; source < n_; ++source) {
    for (int32_t target = 0; target < n_; ++target) Reserve(source, target, source, &send_base_);
  }
  for (int32_t source = 0; source < n_; ++source) {
    for (int32_t target = 0; target < n_; ++target) Reserve(source, target, target, &receive_base_);
  }
}

void Textbook::Reserve(int32_t source, int32_t target, int32_t holder, std::vector<int64_t>* bases) {
  for (int32_t rail = 0; rail < m_; ++rail) {
    int64_t& rows = staging_rows_[topology_.device(holder, rail)];
    (*bases)[Rail(source, target, rail)] = rows;
    rows += Quota(Pair(source, target), rail);
  }
}

// Every device keeps what its rail has room for; what is left over fills the other rails in order.
void Textbook::Balance(int32_t source, int32_t target) {
  const size_t pair = Pair(source, target);
  sent_[pair] = 0;
  const int64_t* tile = traffic_ + (int64_t{source} * topology_.devices() + target) * m_;
  for (int32_t origin = 0; origin < m_; ++origin) {
    const int64_t* row = tile + static_cast<int64_t>(origin) * topology_.devices();
    row_sums_[origin] = 0;
    for (int32_t local = 0; local < m_; ++local) row_sums_[origin] += row[local];
    taken_[origin] = std::min(row_sums_[origin], Quota(pair, origin));
  }
  int32_t giver = 0;
  for (int32_t rail = 0; rail < m_; ++rail) {
    RailList& list = lists_[Rail(source, target, rail)];
    list.next = static_cast<int32_t>(segments_.size());
    const int64_t quota = Quota(pair, rail);
    int64_t position = 0;
    AppendRows(tile, rail, 0, std::min(row_sums_[rail], quota), &position);
    while (position < quota) {
      const int64_t rows = std::min(quota - position, row_sums_[giver] - taken_[giver]);
      AppendRows(tile, giver, taken_[giver], taken_[giver] + rows, &position);
      taken_[giver] += rows;
      if (taken_[giver] == row_sums_[giver]) ++giver;
    }
    list.end = static_cast<int32_t>(segments_.size());
  }
}

// Rows [begin, end) of all that `origin` sends into the tile, one block behind the other.
void Textbook::AppendRows(const int64_t* tile, int32_t origin, int64_t begin, int64_t end, int64_t* position) {
  const int64_t* row = tile + static_cast<int64_t>(origin) * topology_.devices();
  int64_t block = 0;
  for (int32_t target = 0; target < m_ && block < end; block += row[target++]) {
    const int64_t first = std::max<int64_t>(begin - block, 0);
    const int64_t last = std::min(end - block, row[target]);
    if (first >= last) continue;
    segments_.push_back({*position, first, last - first, origin, target});
    *position += last - first;
  }
}

void Textbook::ListLocal(int32_t device) {
  const int32_t devices = topology_.devices();
  const int32_t first = topology_.device(topology_.server_of(device), 0);
  const auto push = [&](int32_t src, int32_t dst) {
    const int64_t rows = traffic_[static_cast<size_t>(src) * devices + dst];
    if (rows == 0) return;
    transfers_.push_back({Phase::kLocal, -1, src, dst, src, dst, 0, rows, Transfer::kInPlace, Transfer::kInPlace});
  };
  for (int32_t other = first; other < first + m_; ++other) {
    push(device, other);
    if (other != device) push(other, device);
  }
}

void Textbook::ListStage(int32_t stage, int32_t server, int32_t local) {
  const size_t first = static_cast<size_t>(stage) * n_;
  const Slice out = NextSlice(server, targets_[first + server], weights_[stage]);
  const Slice in = NextSlice(sources_[first + server], server, weights_[stage]);
  ListHops(Phase::kBalance, stage, out, local, &Segment::origin);
  ListRail(Phase::kScaleOut, stage, out, local);
  ListRail(Phase::kScaleOut, stage, in, local);
  ListHops(Phase::kRedistribute, stage, in, local, &Segment::target);
  Advance(out);
  Advance(in);
}

// Of padding nothing moves; a pair's own rows go first.
Textbook::Slice Textbook::NextSlice(int32_t source, int32_t target, int64_t rows) {
  if (source == target) return {source, target, 0, 0};
  const size_t pair = Pair(source, target);
  const int64_t begin = sent_[pair];
  sent_[pair] = std::min(begin + rows, Quota(pair, 0));
  return {source, target, begin, sent_[pair]};
}

// The device's part in balance or redistribution: on its own rail in hops that start or end elsewhere, on the others
// in those that do so here.
void Textbook::ListHops(Phase phase, int32_t stage, const Slice& slice, int32_t local, int32_t Segment::* end) {
  for (int32_t rail = 0; rail < m_; ++rail) {
    ForEachPart(slice, rail, [&](const Segment& part) {
      if ((rail == local) != (part.*end == local)) Push(phase, stage, slice, rail, part);
    });
  }
}

void Textbook::ListRail(Phase phase, int32_t stage, const Slice& slice, int32_t rail) {
  ForEachPart(slice, rail, [&](const Segment& part) { Push(phase, stage, slice, rail, part); });
}

template <typename Use>
void Textbook::ForEachPart(const Slice& slice, int32_t rail, Use use) const {
  const RailList& list = lists_[Rail(slice.source, slice.target, rail)];
  for (int32_t i = list.next; i < list.end && segments_[i].position < slice.end; ++i) {
    const Segment& whole = segments_[i];
    const int64_t begin = std::max(whole.position, slice.begin);
    const int64_t end = std::min(whole.position + whole.rows, slice.end);
    if (begin >= end) continue;
    use(Segment{begin, whole.first_row + begin - whole.position, end - begin, whole.origin, whole.target});
  }
}

void Textbook::Push(Phase phase, int32_t stage, const Slice& slice, int32_t rail, const Segment& part) {
  const size_t index = Rail(slice.source, slice.target, rail);
  const int32_t sender = topology_.device(slice.source, rail);
  const int32_t receiver = topology_.device(slice.target, rail);
  const int32_t origin = topology_.device(slice.source, part.origin);
  const int32_t target = topology_.device(slice.target, part.target);
  const int64_t sent_from = part.origin == rail ? Transfer::kInPlace : send_base_[index] + part.position;
  const int64_t received_at = part.target == rail ? Transfer::kInPlace : receive_base_[index] + part.position;
  Transfer transfer = {phase,  stage,          sender,    receiver,  origin,
                       target, part.first_row, part.rows, sent_from, received_at};
  if (phase == Phase::kBalance) {
    transfer.src = origin;
    transfer.dst = sender;
    transfer.src_row = Transfer::kInPlace;
    transfer.dst_row = sent_from;
  } else if (phase == Phase::kRedistribute) {
    transfer.src = receiver;
    transfer.dst = target;
    transfer.src_row = received_at;
    transfer.dst_row = Transfer::kInPlace;
  }
  transfers_.push_back(transfer);
}

void Textbook::Advance(const Slice& slice) {
  if (slice.source == slice.target) return;
  for (int32_t rail = 0; rail < m_; ++rail) {
    RailList& list = lists_[Rail(slice.source, slice.target, rail)];
    while (list.next < list.end && segments_[list.next].position + segments_[list.next].rows <= slice.end) ++list.next;
  }
}

}  // namespace fastjax::bench
