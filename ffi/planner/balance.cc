#include "planner/balance.h"

#include <algorithm>

#include "planner/bits.h"

// Why this moves the fewest rows. A row (i, j) on rail k moves [k != i] + [k != j] times. A diagonal row costs 0 on its
// own rail and 2 elsewhere; any other costs 1 on rail i or j and 2 elsewhere. Giving a diagonal row's place away frees
// room for one other row, which saves 1 at most and costs 2, so diagonal rows come first. What remains is to place as
// many of the others as possible on one of their two ends: a maximum flow, found by augmenting paths from rails above
// their quota to rails below it, along rows that may change from one end to the other.

namespace fastjax::planner {

Balancer::Balancer(int32_t rails)
    : rails_(rails),
      words_(BitWords(rails)),
      placed_(static_cast<size_t>(rails) * rails),
      here_(static_cast<size_t>(rails) * rails),
      surplus_(rails),
      excess_(rails),
      movable_(static_cast<size_t>(rails) * words_),
      over_(words_),
      room_(words_),
      unseen_(words_),
      parent_(rails),
      queue_(rails),
      first_piece_(rails + 1) {
  pieces_.reserve(static_cast<size_t>(rails) * (rails + 1));
}

int32_t Balancer::Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, Rail* rails, Segment* pool,
                       int32_t first) {
  Assign(tile, stride, quotas);
  for (int32_t rail = 0; rail < rails_; ++rail) first = WriteAll(rail, &rails[rail], pool, first);
  return first;
}

int32_t Balancer::FillFor(const Viewer& viewer, const int64_t* tile, int64_t stride, const int64_t* quotas, Rail* rails,
                          Segment* pool, int32_t first) {
  Assign(tile, stride, quotas);
  for (int32_t rail = 0; rail < rails_; ++rail) {
    if (rail == viewer.local) {
      first = WriteAll(rail, &rails[rail], pool, first);
    } else if (viewer.sends) {
      first = WriteSentBy(viewer.local, rail, &rails[rail], pool, first);
    } else {
      first = WriteReceivedBy(viewer.local, rail, &rails[rail], pool, first);
    }
  }
  return first;
}

void Balancer::Assign(const int64_t* tile, int64_t stride, const int64_t* quotas) {
  // Small plans spend most of their time here, hence without loops over words where one will do, and with a number of
  // rails that the compiler knows where it is the usual one.
  if (rails_ == 8) {
    PlaceOnOrigins<8>(tile, stride, quotas);
  } else {
    PlaceOnOrigins<0>(tile, stride, quotas);
  }
  if (words_ == 1) {
    PushDirectly<true>();
    while (over_[0] != 0 && room_[0] != 0 && Augment<true>()) {
    }
  } else {
    PushDirectly<false>();
    while (Augment<false>()) {
    }
  }
  SpreadLeftover();
}

int32_t Balancer::WriteAll(int32_t rail, Rail* out, Segment* pool, int32_t first) const {
  return rails_ == 8 ? WriteRail<8>(rail, out, pool, first) : WriteRail<0>(rail, out, pool, first);
}

template <int32_t kRails>
void Balancer::PlaceOnOrigins(const int64_t* tile, int64_t stride, const int64_t* quotas) {
  const int32_t m = kRails == 0 ? rails_ : kRails;
  const int32_t words = kRails == 0 ? words_ : 1;
  std::fill(movable_.begin(), movable_.end(), 0);
  std::fill(over_.begin(), over_.end(), 0);
  std::fill(room_.begin(), room_.end(), 0);
  for (int32_t i = 0; i < m; ++i) {
    const int64_t* row = tile + i * stride;
    int64_t* placed = &placed_[static_cast<size_t>(i) * m];
    int64_t* here = &here_[static_cast<size_t>(i) * m];
    uint64_t* movable = &movable_[static_cast<size_t>(i) * words];
    int64_t load = 0;
    for (int32_t j = 0; j < m; ++j) {
      placed[j] = here[j] = row[j];
      load += row[j];
      movable[kRails == 0 ? j / 64 : 0] |= uint64_t{row[j] != 0} << (j % 64);
    }
    ClearBit(movable, i);
    surplus_[i] = std::max<int64_t>(row[i] - quotas[i], 0);
    placed[i] -= surplus_[i];
    excess_[i] = load - surplus_[i] - quotas[i];
    over_[i / 64] |= uint64_t{excess_[i] > 0} << (i % 64);
    room_[i / 64] |= uint64_t{excess_[i] < 0} << (i % 64);
  }
}

// Straight from rails above their quota to rails below it: what the search would find first, without the search.
template <bool kOneWord>
void Balancer::PushDirectly() {
  const int32_t words = kOneWord ? 1 : words_;
  for (int32_t from = 0; from < rails_; ++from) {
    if (excess_[from] <= 0) continue;
    for (int32_t word = 0; word < words; ++word) {
      uint64_t open = movable_[static_cast<size_t>(from) * words + word] & room_[word];
      for (; open != 0 && excess_[from] > 0; open &= open - 1) {
        const int32_t to = word * 64 + LowestBit(open);
        const int64_t rows = std::min({-excess_[to], excess_[from], here_[from * rails_ + to]});
        Move<kOneWord>(from, to, rows);
        excess_[from] -= rows;
        excess_[to] += rows;
        if (excess_[to] == 0) room_[word] &= ~BitOf(to);
      }
    }
    if (excess_[from] == 0) ClearBit(over_.data(), from);
  }
}

// Breadth-first from all rails above their quota at once, so a path never runs through another such rail. Pushes along
// every path of the search that still lets rows through when it is found; the first always does.
template <bool kOneWord>
bool Balancer::Augment() {
  const int32_t words = kOneWord ? 1 : words_;
  int32_t queued = 0;
  bool pushed = false;
  for (int32_t word = 0; word < words; ++word) unseen_[word] = ~uint64_t{0};
  TakeCommon(over_.data(), unseen_.data(), words, [&](int32_t rail) {
    parent_[rail] = rail;
    queue_[queued++] = rail;
  });
  for (int32_t head = 0; head < queued; ++head) {
    const int32_t from = queue_[head];
    const uint64_t* movable = &movable_[static_cast<size_t>(from) * words];
    int64_t rows = 1;
    for (int32_t to = 0; rows > 0 && (to = FirstCommon(movable, room_.data(), words)) >= 0;) {
      rows = PushAlong<kOneWord>(from, to);
      pushed = pushed || rows > 0;
    }
    TakeCommon(movable, unseen_.data(), words, [&](int32_t rail) {
      parent_[rail] = from;
      queue_[queued++] = rail;
    });
  }
  return pushed;
}

// As many rows as the search's path to `from`, and the step to `to` behind it, let through.
template <bool kOneWord>
int64_t Balancer::PushAlong(int32_t from, int32_t to) {
  int64_t rows = std::min(-excess_[to], here_[from * rails_ + to]);
  int32_t source = from;
  for (; parent_[source] != source; source = parent_[source]) {
    rows = std::min(rows, here_[parent_[source] * rails_ + source]);
  }
  rows = std::min(rows, excess_[source]);
  if (rows == 0) return 0;
  Move<kOneWord>(from, to, rows);
  for (int32_t rail = from; rail != source; rail = parent_[rail]) Move<kOneWord>(parent_[rail], rail, rows);
  excess_[source] -= rows;
  excess_[to] += rows;
  if (excess_[source] == 0) ClearBit(over_.data(), source);
  if (excess_[to] == 0) ClearBit(room_.data(), to);
  return rows;
}

template <bool kOneWord>
void Balancer::Move(int32_t from, int32_t to, int64_t rows) {
  int64_t& left = here_[from * rails_ + to];
  left -= rows;
  here_[to * rails_ + from] += rows;
  const size_t words = kOneWord ? 1 : static_cast<size_t>(words_);
  if (left == 0) ClearBit(&movable_[static_cast<size_t>(from) * words], to);
  SetBit(&movable_[static_cast<size_t>(to) * words], from);
}

// What no end has room for goes to the rails that have, blocks and rails both in ascending order. A rail above its
// quota never received rows by a path, so its surplus is rows of its own.
void Balancer::SpreadLeftover() {
  const int32_t m = rails_;
  pieces_.clear();
  std::fill(first_piece_.begin(), first_piece_.end(), 0);
  int32_t rail = 0;
  for (int32_t i = 0; i < m; ++i) {
    if (excess_[i] <= 0 && surplus_[i] == 0) continue;
    for (int32_t j = 0; j < m; ++j) {
      if (i == j) {
        TakeLeftover(i, j, surplus_[i], &rail);
        continue;
      }
      const int64_t rows = std::min(excess_[i], here_[i * m + j]);
      placed_[i * m + j] -= rows;
      here_[i * m + j] -= rows;
      excess_[i] -= rows;
      TakeLeftover(i, j, rows, &rail);
    }
  }
  for (; rail < m; ++rail) first_piece_[rail + 1] = static_cast<int32_t>(pieces_.size());
}

void Balancer::TakeLeftover(int32_t origin, int32_t target, int64_t rows, int32_t* rail) {
  int64_t row = placed_[origin * rails_ + target];
  while (rows > 0) {
    while (excess_[*rail] >= 0) first_piece_[++*rail] = static_cast<int32_t>(pieces_.size());
    const int64_t taken = std::min(rows, -excess_[*rail]);
    pieces_.push_back({0, row, taken, origin, target});
    excess_[*rail] += taken;
    rows -= taken;
    row += taken;
  }
}

// Peers are taken in turn from the one behind the rail, so that the rails of a server do not all serve the same
// device at the same time. Whether a block has rows here is as good as random, so instead of a branch each is
// written, and kept if it has.
template <int32_t kRails>
int32_t Balancer::WriteRail(int32_t rail, Rail* out, Segment* pool, int32_t first) const {
  const int32_t m = kRails == 0 ? rails_ : kRails;
  int64_t position = 0;
  out->first = first;
  const auto append = [&](int64_t first_row, int64_t rows, int32_t origin, int32_t target) {
    pool[first] = {position, first_row, rows, origin, target};
    position += rows;
    first += rows > 0;
  };
  const auto head = [&](int32_t target) { append(0, AtOrigin(rail * m + target), rail, target); };
  const auto tail = [&](int32_t origin) {
    const int64_t at_origin = AtOrigin(origin * m + rail);
    append(at_origin, placed_[origin * m + rail] - at_origin, origin, rail);
  };
  for (int32_t target = rail + 1; target < m; ++target) head(target);
  for (int32_t target = 0; target < rail; ++target) head(target);
  for (int32_t i = first_piece_[rail]; i < first_piece_[rail + 1]; ++i) {
    const Segment& piece = pieces_[i];
    append(piece.first_row, piece.rows, piece.origin, piece.target);
  }
  append(0, placed_[rail * m + rail], rail, rail);
  for (int32_t origin = rail + 1; origin < m; ++origin) tail(origin);
  for (int32_t origin = 0; origin < rail; ++origin) tail(origin);
  out->end = first;
  out->rows = position;
  return first;
}

// Of the list that WriteRail writes, what has this origin, which is not the rail: some pieces, and one block of the
// tail.
int32_t Balancer::WriteSentBy(int32_t origin, int32_t rail, Rail* out, Segment* pool, int32_t first) const {
  const int32_t m = rails_;
  int64_t position = 0;
  out->first = first;
  for (int32_t target = 0; target < m; ++target) position += target == rail ? 0 : AtOrigin(rail * m + target);
  first = WritePieces(rail, [&](const Segment& piece) { return piece.origin == origin; }, &position, pool, first);
  position += placed_[rail * m + rail];
  for (int32_t other = rail + 1 < m ? rail + 1 : 0; other != origin; other = other + 1 < m ? other + 1 : 0) {
    position += AtTarget(other * m + rail);
  }
  const int64_t rows = AtTarget(origin * m + rail);
  pool[first] = {position, AtOrigin(origin * m + rail), rows, origin, rail};
  first += rows > 0;
  out->end = first;
  return first;
}

// What has this target, which is not the rail: one block of the head, and some pieces.
int32_t Balancer::WriteReceivedBy(int32_t target, int32_t rail, Rail* out, Segment* pool, int32_t first) const {
  const int32_t m = rails_;
  int64_t position = 0;
  out->first = first;
  for (int32_t other = rail + 1 < m ? rail + 1 : 0; other != target; other = other + 1 < m ? other + 1 : 0) {
    position += AtOrigin(rail * m + other);
  }
  const int64_t rows = AtOrigin(rail * m + target);
  pool[first] = {position, 0, rows, rail, target};
  first += rows > 0;
  if (first_piece_[rail] < first_piece_[rail + 1]) {
    for (int32_t other = target; other != rail; other = other + 1 < m ? other + 1 : 0) {
      position += AtOrigin(rail * m + other);
    }
    first = WritePieces(rail, [&](const Segment& piece) { return piece.target == target; }, &position, pool, first);
  }
  out->end = first;
  return first;
}

template <typename Wanted>
int32_t Balancer::WritePieces(int32_t rail, Wanted wanted, int64_t* position, Segment* pool, int32_t first) const {
  for (int32_t i = first_piece_[rail]; i < first_piece_[rail + 1]; ++i) {
    pool[first] = pieces_[i];
    pool[first].position = *position;
    *position += pieces_[i].rows;
    first += wanted(pieces_[i]);
  }
  return first;
}

}  // namespace fastjax::planner
