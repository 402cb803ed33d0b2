#include "planner/stages.h"

#include <algorithm>

// FAST (arXiv 2505.09764) runs stage i beside the redistribution of stage i - 1, with all balance before. Here both
// kinds of work inside servers are part of a pipeline, and the order and the size of its stages are chosen for it
// (docs/design/stages.md, "Order and pieces"). Invariant: the pieces of a matching add up to its weight, so whatever
// the cuts, stages carry what the matchings cover.

namespace fastjax::planner {
namespace {

// What may go on inside servers while a stage of `units` units crosses, less the start-up of that.
Picoseconds RoomUnder(const Pricing& pricing, int64_t units) {
  const Picoseconds time = pricing.scale_out_latency + pricing.scale_out.Time(units) - pricing.scale_up_latency;
  return std::max(time, Picoseconds{0});
}

// Rows of a load that fall into units [begin, end), if the units [first, last) carry it evenly: half of those that are
// sure to carry none do, since rails swap rows. Rounded so that shares of adjoining ranges add up to all rows: a single
// row may be what takes longest.
int64_t Share(int64_t rows, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t from = std::max(begin, first);
  const int64_t to = std::min(end, last);
  if (from >= to) return 0;
  return MulDiv(rows, last - from, last - first) - MulDiv(rows, last - to, last - first);
}

// How long work inside a server may be exposed before the first stage, and behind the last: another stage costs a
// start-up, and halving the exposure takes one or two of them. Without start-ups, a 256th of the whole is fine enough.
Picoseconds Exposure(const Pricing& pricing, int64_t total_units) {
  return std::max(2 * pricing.scale_out_latency, pricing.scale_out.Time(total_units) / 256);
}

}  // namespace

int64_t MaxStages(int32_t servers) { return servers < 2 ? 0 : MaxMatchings(servers) + 2 * int64_t{kMaxCuts}; }

StageBuilder::StageBuilder(int32_t servers) : servers_(servers), done_(static_cast<size_t>(servers) * servers) {}

void StageBuilder::Build(const Tiles& tiles, const MatchingList& matchings, const Pricing& pricing) {
  lengths_.clear();
  Order(matchings);
  if (tiles.topology().devices_per_server > 1) {
    Cut(Work::kBalance, tiles, matchings, pricing);
    std::reverse(pieces_.begin(), pieces_.end());
    Cut(Work::kRedistribute, tiles, matchings, pricing);
    std::reverse(pieces_.begin(), pieces_.end());
  }
  std::fill(done_.begin(), done_.end(), 0);
  to_.assign(pieces_.size() * servers_, kIdle);
  from_.assign(pieces_.size() * servers_, kIdle);
  begins_.resize(pieces_.size() * servers_);
  for (const Piece& piece : pieces_) EmitStage(tiles, matchings.matching(piece.matching), piece.units);
}

// The longest goes into the middle, with shorter ones before and behind it in turn: what feeds the first stage and what
// drains the last is the work that nothing hides, and every other stage has one about as long on either side.
void StageBuilder::Order(const MatchingList& matchings) {
  const int32_t count = matchings.count();
  total_units_ = 0;
  for (const int64_t weight : matchings.weights) total_units_ = Saturated(Wide{total_units_} + weight);
  by_weight_.resize(count);
  for (int32_t i = 0; i < count; ++i) by_weight_[i] = i;
  std::sort(by_weight_.begin(), by_weight_.end(), [&](int32_t a, int32_t b) {
    return matchings.weights[a] != matchings.weights[b] ? matchings.weights[a] > matchings.weights[b] : a < b;
  });
  pieces_.clear();
  for (int32_t i = 0; i < count; ++i) {
    const int32_t rising = 2 * ((count - 1) / 2 - i);
    const int32_t matching = by_weight_[rising >= 0 ? rising : -rising - 1];
    pieces_.push_back({matching, matchings.weights[matching]});
  }
}

// Cuts pieces so that each one's balance fits under the piece before it: from the first, whose balance is exposed, they
// grow by the ratio of the two until they are as long as their matching. Where balance takes longer than scale-out they
// would shrink; there, pieces of equal length keep both busy. For redistribution the same holds from the last piece on.
void StageBuilder::Cut(Work work, const Tiles& tiles, const MatchingList& matchings, const Pricing& pricing) {
  const Picoseconds exposed = Exposure(pricing, total_units_);
  Picoseconds room = exposed;
  int32_t cuts = 0;
  cut_.clear();
  const auto add = [&](const Piece& piece) {
    cut_.push_back(piece);
    room = std::max(RoomUnder(pricing, piece.units), exposed);
  };
  for (const Piece& whole : pieces_) {
    const int16_t* to = matchings.matching(whole.matching);
    int64_t left = whole.units;
    int64_t before = 0;
    for (; cuts < kMaxCuts; ++cuts) {
      int64_t piece = PieceLimit(work, tiles, to, pricing.scale_up.Rows(room), left);
      if (piece <= before) piece = std::max<int64_t>({before, total_units_ / (2 * int64_t{kMaxCuts}), 1});
      if (piece >= left) break;
      before = piece;
      piece = std::min(piece, left - left / 2);  // no small rest beside large pieces
      add({whole.matching, piece});
      left -= piece;
    }
    add({whole.matching, left});
  }
  pieces_.swap(cut_);
}

// Units of the matching that bring no more than `rows` of balance, or redistribution, to any server's busiest device,
// even if they are those with most of it; `left` at most. Most pairs allow that many, so few are worth a division.
int64_t StageBuilder::PieceLimit(Work work, const Tiles& tiles, const int16_t* to, int64_t rows, int64_t left) const {
  int64_t limit = left;
  for (int32_t s = 0; s < servers_; ++s) {
    const TileLoad& load = tiles.load(tiles.PairOf(s, to[s] == kIdle ? s : to[s]));  // its own is none
    const bool balances = work == Work::kBalance;
    const int64_t most = balances ? load.balance : load.redistribute;
    const int64_t units = balances ? load.balance_units : load.redistribute_units;
    const bool lower = Wide{units} * rows < Wide{limit} * most;
    if (static_cast<int>(most > rows) & static_cast<int>(lower)) limit = MulDiv(units, rows, most);
  }
  return limit;
}

// Nothing is emitted if no pair has units left: matchings cover more than there is where that saves stages. Nor, where
// NICs differ, if there is no row in these units.
void StageBuilder::EmitStage(const Tiles& tiles, const int16_t* matching, int64_t length) {
  const int32_t n = servers_;
  const bool equal = tiles.topology().equal_nics();
  const size_t first = lengths_.size() * n;
  int64_t longest = 0;
  for (int32_t s = 0; s < n; ++s) {
    const int16_t d = matching[s];
    if (d == kIdle) continue;
    const int32_t pair = tiles.PairOf(s, d);
    const int64_t begin = done_[pair];
    const int64_t moved = std::min(tiles.units()[pair] - begin, length);
    done_[pair] += moved;
    const bool any = moved > 0 && (equal || tiles.AnyRows(s, d, begin, begin + moved));
    begins_[first + s] = begin;
    longest = std::max(longest, any ? moved : 0);
    to_[first + s] = any ? d : kIdle;
    from_[first + d] = static_cast<int16_t>(any ? s : kIdle);
  }
  if (longest > 0) lengths_.push_back(longest);
}

// Stages follow each other on the NICs. Inside servers, balance goes first, as far ahead as it can; redistribution of a
// stage queues up when the stage is over; rows that stay in their server take what time is left.
Picoseconds StageBuilder::PredictedTime(const Tiles& tiles, const Pricing& pricing) {
  std::fill(done_.begin(), done_.end(), 0);
  inside_.assign(static_cast<size_t>(servers_), Inside());
  Picoseconds end = 0;
  for (int32_t stage = 0; stage < count(); ++stage) {
    Picoseconds start = end;
    for (int32_t s = 0; s < servers_; ++s) {
      const int32_t d = to(stage, s);
      if (d == kIdle) continue;
      const Picoseconds balance = WorkOf(Work::kBalance, tiles, tiles.PairOf(s, d), length(stage), pricing);
      inside_[s].balanced += balance;
      inside_[s].work += balance;
      if (balance != 0) start = std::max(start, inside_[s].balanced);
    }
    end = start + pricing.scale_out_latency + pricing.scale_out.Time(length(stage));
    for (int32_t s = 0; s < servers_; ++s) {
      const int32_t d = to(stage, s);
      if (d == kIdle) continue;
      const int32_t pair = tiles.PairOf(s, d);
      const Picoseconds drain = WorkOf(Work::kRedistribute, tiles, pair, length(stage), pricing);
      inside_[d].work += drain;
      if (drain != 0) inside_[d].drained = std::max(inside_[d].drained, end) + drain;
      done_[pair] = std::min(done_[pair] + length(stage), tiles.units()[pair]);
    }
  }
  const Picoseconds local =
      tiles.local_rows() == 0 ? Picoseconds{0} : pricing.scale_up_latency + pricing.scale_up.Time(tiles.local_rows());
  for (const Inside& inside : inside_) end = std::max({end, inside.drained, inside.work + local});
  return end;
}

// Returns the time that the pair's next units take on the busiest device.
Picoseconds StageBuilder::WorkOf(Work work, const Tiles& tiles, int32_t pair, int64_t length,
                                 const Pricing& pricing) const {
  const TileLoad& load = tiles.load(pair);
  const int64_t units = tiles.units()[pair];
  const int64_t begin = done_[pair];
  const int64_t end = std::min(begin + length, units);
  const int64_t rows = work == Work::kBalance
                           ? Share(load.balance, (units - load.balance_units) / 2, units, begin, end)
                           : Share(load.redistribute, 0, (units + load.redistribute_units) / 2, begin, end);
  return rows == 0 ? Picoseconds{0} : pricing.scale_up_latency + pricing.scale_up.Time(rows);
}

}  // namespace fastjax::planner
