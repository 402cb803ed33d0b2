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

StageBuilder::StageBuilder(const Tiles& tiles, const Pricing& pricing)
    : tiles_(tiles),
      pricing_(pricing),
      servers_(tiles.topology().servers),
      done_(static_cast<size_t>(servers_) * servers_) {}

void StageBuilder::Build(const MatchingList& matchings) {
  lengths_.clear();
  Order(matchings);
  if (tiles_.topology().devices_per_server > 1) {
    Cut(&TileLoad::balance, matchings);
    std::reverse(pieces_.begin(), pieces_.end());
    Cut(&TileLoad::redistribute, matchings);
    std::reverse(pieces_.begin(), pieces_.end());
  }
  std::fill(done_.begin(), done_.end(), 0);
  to_.assign(pieces_.size() * servers_, kIdle);
  from_.assign(pieces_.size() * servers_, kIdle);
  begins_.resize(pieces_.size() * servers_);
  for (const Piece& piece : pieces_) EmitStage(matchings.matching(piece.matching), piece.units);
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
void StageBuilder::Cut(TileWork TileLoad::* work, const MatchingList& matchings) {
  const Picoseconds exposed = Exposure(pricing_, total_units_);
  Picoseconds room = exposed;
  int32_t cuts = 0;
  cut_.clear();
  const auto add = [&](const Piece& piece) {
    cut_.push_back(piece);
    room = std::max(RoomUnder(pricing_, piece.units), exposed);
  };
  for (const Piece& whole : pieces_) {
    const int16_t* to = matchings.matching(whole.matching);
    int64_t left = whole.units;
    int64_t before = 0;
    for (; cuts < kMaxCuts; ++cuts) {
      int64_t piece = PieceLimit(work, to, pricing_.scale_up.Rows(room), left);
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
int64_t StageBuilder::PieceLimit(TileWork TileLoad::* work, const int16_t* to, int64_t rows, int64_t left) const {
  int64_t limit = left;
  for (int32_t s = 0; s < servers_; ++s) {
    const auto [most, units] = tiles_.load(tiles_.PairOf(s, to[s] == kIdle ? s : to[s])).*work;  // its own is none
    const bool lower = Wide{units} * rows < Wide{limit} * most;
    if (static_cast<int>(most > rows) & static_cast<int>(lower)) limit = MulDiv(units, rows, most);
  }
  return limit;
}

// Nothing is emitted if no pair has units left: matchings cover more than there is where that saves stages. Nor, where
// NICs differ, if there is no row in these units.
void StageBuilder::EmitStage(const int16_t* matching, int64_t length) {
  const int32_t n = servers_;
  const bool equal = tiles_.topology().equal_nics();
  const size_t first = lengths_.size() * n;
  int64_t longest = 0;
  for (int32_t s = 0; s < n; ++s) {
    const int16_t d = matching[s];
    if (d == kIdle) continue;
    const int32_t pair = tiles_.PairOf(s, d);
    const int64_t begin = done_[pair];
    const int64_t moved = std::min(tiles_.units()[pair] - begin, length);
    done_[pair] += moved;
    const bool any = moved > 0 && (equal || tiles_.AnyRows(s, d, begin, begin + moved));
    begins_[first + s] = begin;
    longest = std::max(longest, any ? moved : 0);
    to_[first + s] = any ? d : kIdle;
    from_[first + d] = static_cast<int16_t>(any ? s : kIdle);
  }
  if (longest > 0) lengths_.push_back(longest);
}

// Stages follow each other on the NICs. Inside servers, balance goes first, as far ahead as it can; redistribution of a
// stage queues up when the stage is over; rows that stay in their server take what time is left.
Picoseconds StageBuilder::PredictedTime() {
  std::fill(done_.begin(), done_.end(), 0);
  inside_.assign(static_cast<size_t>(servers_), Inside());
  Picoseconds end = 0;
  for (int32_t stage = 0; stage < count(); ++stage) {
    Picoseconds start = end;
    for (int32_t s = 0; s < servers_; ++s) {
      const int32_t d = to(stage, s);
      if (d == kIdle) continue;
      const Picoseconds balance = TimeOf(&TileLoad::balance, tiles_.PairOf(s, d), length(stage));
      inside_[s].balanced += balance;
      inside_[s].work += balance;
      if (balance != 0) start = std::max(start, inside_[s].balanced);
    }
    end = start + pricing_.scale_out_latency + pricing_.scale_out.Time(length(stage));
    for (int32_t s = 0; s < servers_; ++s) {
      const int32_t d = to(stage, s);
      if (d == kIdle) continue;
      const int32_t pair = tiles_.PairOf(s, d);
      const Picoseconds drain = TimeOf(&TileLoad::redistribute, pair, length(stage));
      inside_[d].work += drain;
      if (drain != 0) inside_[d].drained = std::max(inside_[d].drained, end) + drain;
      done_[pair] = std::min(done_[pair] + length(stage), tiles_.units()[pair]);
    }
  }
  const Picoseconds local = pricing_.InsideTime(tiles_.local_rows());
  for (const Inside& inside : inside_) end = std::max({end, inside.drained, inside.work + local});
  return end;
}

// Returns the time that the pair's next units take on the busiest device.
Picoseconds StageBuilder::TimeOf(TileWork TileLoad::* work, int32_t pair, int64_t length) const {
  const auto [rows, with] = tiles_.load(pair).*work;
  const int64_t units = tiles_.units()[pair];
  const int64_t begin = done_[pair];
  const int64_t end = std::min(begin + length, units);
  const bool balances = work == &TileLoad::balance;
  const int64_t first = balances ? (units - with) / 2 : 0;
  const int64_t last = balances ? units : (units + with) / 2;
  return pricing_.InsideTime(Share(rows, first, last, begin, end));
}

}  // namespace fastjax::planner
