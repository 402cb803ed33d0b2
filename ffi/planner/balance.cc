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
  PlaceOnOrigins(tile, stride, quotas);
  while (Augment()) {
  }
  SpreadLeftover();
  for (int32_t rail = 0; rail < rails_; ++rail) first = WriteRail(rail, &rails[rail], pool, first);
  return first;
}

void Balancer::PlaceOnOrigins(const int64_t* tile, int64_t stride, const int64_t* quotas) {
  const int32_t m = rails_;
  std::fill(movable_.begin(), movable_.end(), 0);
  std::fill(over_.begin(), over_.end(), 0);
  std::fill(room_.begin(), room_.end(), 0);
  for (int32_t i = 0; i < m; ++i) {
    const int64_t* row = tile + i * stride;
    int64_t load = 0;
    for (int32_t j = 0; j < m; ++j) {
      placed_[i * m + j] = row[j];
      here_[i * m + j] = row[j];
      load += row[j];
      movable_[i * words_ + j / 64] |= uint64_t{row[j] != 0} << (j % 64);
    }
    ClearBit(&movable_[static_cast<size_t>(i) * words_], i);
    surplus_[i] = std::max<int64_t>(row[i] - quotas[i], 0);
    placed_[i * m + i] -= surplus_[i];
    excess_[i] = load - surplus_[i] - quotas[i];
    over_[i / 64] |= uint64_t{excess_[i] > 0} << (i % 64);
    room_[i / 64] |= uint64_t{excess_[i] < 0} << (i % 64);
  }
}

// Breadth-first from all rails above their quota at once, so a path never runs through another such rail. Pushes along
// every path of the search that still lets rows through when it is found; the first always does.
bool Balancer::Augment() {
  int32_t queued = 0;
  bool pushed = false;
  for (uint64_t& word : unseen_) word = ~uint64_t{0};
  TakeCommon(over_.data(), unseen_.data(), words_, [&](int32_t rail) {
    parent_[rail] = rail;
    queue_[queued++] = rail;
  });
  for (int32_t head = 0; head < queued; ++head) {
    const int32_t from = queue_[head];
    const uint64_t* movable = &movable_[static_cast<size_t>(from) * words_];
    int64_t rows = 1;
    for (int32_t to = 0; rows > 0 && (to = FirstCommon(movable, room_.data(), words_)) >= 0;) {
      rows = PushAlong(from, to);
      pushed = pushed || rows > 0;
    }
    TakeCommon(movable, unseen_.data(), words_, [&](int32_t rail) {
      parent_[rail] = from;
      queue_[queued++] = rail;
    });
  }
  return pushed;
}

// As many rows as the search's path to `from`, and the step to `to` behind it, let through.
int64_t Balancer::PushAlong(int32_t from, int32_t to) {
  int64_t rows = std::min(-excess_[to], here_[from * rails_ + to]);
  int32_t source = from;
  for (; parent_[source] != source; source = parent_[source]) {
    rows = std::min(rows, here_[parent_[source] * rails_ + source]);
  }
  rows = std::min(rows, excess_[source]);
  if (rows == 0) return 0;
  Move(from, to, rows);
  for (int32_t rail = from; rail != source; rail = parent_[rail]) Move(parent_[rail], rail, rows);
  excess_[source] -= rows;
  excess_[to] += rows;
  if (excess_[source] == 0) ClearBit(over_.data(), source);
  if (excess_[to] == 0) ClearBit(room_.data(), to);
  return rows;
}

void Balancer::Move(int32_t from, int32_t to, int64_t rows) {
  int64_t& left = here_[from * rails_ + to];
  left -= rows;
  here_[to * rails_ + from] += rows;
  if (left == 0) ClearBit(&movable_[static_cast<size_t>(from) * words_], to);
  SetBit(&movable_[static_cast<size_t>(to) * words_], from);
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
int32_t Balancer::WriteRail(int32_t rail, Rail* out, Segment* pool, int32_t first) const {
  const int32_t m = rails_;
  int64_t position = 0;
  out->first = first;
  const auto append = [&](int64_t first_row, int64_t rows, int32_t origin, int32_t target) {
    pool[first] = {position, first_row, rows, origin, target};
    position += rows;
    first += rows > 0;
  };
  const auto head = [&](int32_t target) {
    append(0, std::min(here_[rail * m + target], placed_[rail * m + target]), rail, target);
  };
  const auto tail = [&](int32_t origin) {
    const int64_t at_origin = std::min(here_[origin * m + rail], placed_[origin * m + rail]);
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

}  // namespace fastjax::planner
