#include "planner/matchings.h"

#include <algorithm>
#include <limits>

#include "planner/bits.h"

// Between servers, FAST (arXiv 2505.09764) pads the server matrix until all lines have equal sums and takes it apart by
// Birkhoff and von Neumann: one perfect matching after another, each with the weight of its smallest entry. Here it is
// covered instead of taken apart (docs/design/stages.md), with the padding kept as numbers beside the lines:
//
//   invariant    every row's and every column's units left, plus its spare, are remaining_.
//
// A matching of weight w takes w off every line: off the pair's units as far as they go, and what they lack off the
// spare of both its servers. So no pair may weigh more than its Reach, and if none does, no spare goes below zero, and
// the invariant holds. By it, the pairs that have units or time to spare always contain a perfect matching (spread the
// spare of rows over that of columns, and Birkhoff's theorem applies), so the search ends with nothing left.
//
// Each matching is one of nearly the largest weight: a bottleneck matching, by the threshold method. Pairs below the
// threshold are no edges; Kuhn's augmenting paths, found breadth-first on words of bits, match what the last matching
// left unmatched; a search that fails proves, by Hall's theorem, that the threshold is too high, and by how much.

namespace fastjax::planner {
namespace {

// The threshold goes a little below what a matching needs: that costs hardly a matching and saves a fifth of the time.
// Where servers are few, a little less: a matching more shows there, and the time does not.
constexpr int32_t kFewServers = 32;
constexpr int32_t SlackShift(int32_t servers) { return servers <= kFewServers ? 6 : 5; }

// Left over by one look at the greedy end to the next: all but 1 / kLooks.
constexpr int32_t kLooks = 6;
constexpr int kExcessBits = 10;

// Units are scaled to below this, so that sums of two fit in 32 bits.
constexpr int kUnitBits = 29;

// A look at shifted pairs alone.
constexpr int32_t kShifts = -1;

// Up to here the search always gets to the end.
constexpr int64_t kMaxExactServers = 16;

// A matching takes a look at all pairs now and then; this many looks at pairs take tens of milliseconds.
constexpr int64_t kMaxSearch = int64_t{1} << 22;

// Bit i of 32, from a table: loops over it work on several at a time.
struct Bits32 {
  constexpr Bits32() {
    for (int i = 0; i < 32; ++i) bit[i] = uint32_t{1} << i;
  }
  uint32_t bit[32] = {};
};
constexpr Bits32 kBits;

}  // namespace

int64_t MaxMatchings(int32_t servers) { return MaxPeeled(servers) + GreedyCover::MaxStages(servers); }

int64_t MaxPeeled(int32_t servers) {
  const int64_t n = servers;
  if (n == 1) return 0;
  if (n <= kMaxExactServers) return n * n + n;
  return std::min(8 * n, std::max<int64_t>(kMaxSearch / (n * n), 8));
}

MatchingBuilder::MatchingBuilder(int32_t servers)
    : servers_(servers),
      words_(BitWords(servers)),
      column_sums_(servers),
      left_(static_cast<size_t>(servers) * servers),
      row_spare_(servers),
      column_spare_(servers),
      usable_(static_cast<size_t>(servers) * words_),
      all_(words_),
      free_(words_),
      unseen_(words_),
      row_to_(servers),
      column_from_(servers),
      via_(servers),
      queue_(servers),
      most_reach_(servers),
      tail_(servers) {
  for (int32_t server = 0; server < servers; ++server) SetBit(all_.data(), server);
  peeled_.servers = servers;
  result_.servers = servers;
}

void MatchingBuilder::Build(const int64_t* units, int64_t startup) {
  peeled_.Clear();
  result_.Clear();
  looks_.clear();
  kept_look_ = -1;
  FindBound(units);
  if (bound_ == 0) return;
  Load(units);
  // Where one start-up is worth more than all units, stages are not what anyone should use, and their length stays as
  // short as it can be.
  startup_ = startup > bound_ ? 0 : startup >> shift_;
  best_cost_ = best_short_cost_ = std::numeric_limits<int64_t>::max() / 4;
  Search();
  Finish(units);
}

bool MatchingBuilder::Take(const int64_t* units, const MatchingList& matchings) {
  FindBound(units);
  if (matchings.count() > MaxMatchings(servers_)) return false;
  uncovered_.assign(units, units + left_.size());
  for (int32_t i = 0; i < matchings.count(); ++i) {
    const int16_t* to = matchings.matching(i);
    for (int32_t s = 0; s < servers_; ++s) {
      if (to[s] == kIdle) continue;
      int64_t& left = uncovered_[static_cast<size_t>(s) * servers_ + to[s]];
      left = std::max<int64_t>(left - matchings.weights[i], 0);
    }
  }
  if (*std::max_element(uncovered_.begin(), uncovered_.end()) != 0) return false;
  result_ = matchings;
  return true;
}

void MatchingBuilder::FindBound(const int64_t* units) {
  const int32_t n = servers_;
  std::fill(column_sums_.begin(), column_sums_.end(), 0);
  bound_ = 0;
  for (int32_t s = 0; s < n; ++s) {
    int64_t sum = 0;
    for (int32_t d = 0; d < n; ++d) {
      const int64_t value = units[static_cast<size_t>(s) * n + d];
      sum += value;
      column_sums_[d] += value;
    }
    bound_ = std::max(bound_, sum);
  }
  for (const int64_t sum : column_sums_) bound_ = std::max(bound_, sum);
}

// Units that need more than kUnitBits are rounded up to coarser ones, which is exact to a billionth.
void MatchingBuilder::Load(const int64_t* units) {
  const int32_t n = servers_;
  shift_ = 0;
  while ((bound_ >> shift_) + n >= int64_t{1} << kUnitBits) ++shift_;
  const int64_t round_up = (int64_t{1} << shift_) - 1;
  std::fill(row_spare_.begin(), row_spare_.end(), 0);
  std::fill(column_spare_.begin(), column_spare_.end(), 0);
  for (int32_t s = 0; s < n; ++s) {
    const int64_t* row = units + static_cast<size_t>(s) * n;
    int32_t* left = &left_[static_cast<size_t>(s) * n];
    int32_t sum = 0;
    for (int32_t d = 0; d < n; ++d) {
      left[d] = static_cast<int32_t>((row[d] + round_up) >> shift_);
      sum += left[d];
      column_spare_[d] += left[d];
    }
    row_spare_[s] = sum;
  }
  total_ = std::max(*std::max_element(row_spare_.begin(), row_spare_.end()),
                    *std::max_element(column_spare_.begin(), column_spare_.end()));
  for (int32_t& spare : row_spare_) spare = total_ - spare;
  for (int32_t& spare : column_spare_) spare = total_ - spare;
  remaining_ = total_;
  used_ = 0;
}

void MatchingBuilder::Search() {
  Consider();
  if (peeled_.count() == 0) ConsiderShifts();
  std::fill(row_to_.begin(), row_to_.end(), kNone);
  std::fill(column_from_.begin(), column_from_.end(), kNone);
  free_ = all_;
  SetThreshold();
  // Small plans spend most of their time here, hence without loops over words where one will do.
  if (words_ == 1) {
    PeelAll<true>();
  } else {
    PeelAll<false>();
  }
}

template <bool kOneWord>
void MatchingBuilder::PeelAll() {
  const int64_t max_peeled = MaxPeeled(servers_);
  int32_t next = NextLook();
  while (!Done()) {
    if (peeled_.count() == max_peeled) return Consider();
    for (int32_t row = 0; row < servers_; ++row) {
      if (row_to_[row] == kNone) Augment<kOneWord>(row);
    }
    Peel(SmallestMatched());
    Refresh();
    if (remaining_ > next) continue;
    Consider();
    next = NextLook();
  }
}

// Whether nothing to come is worth the search: neither much cheaper than the best, nor, if none so far is short, one
// that is and costs little more.
bool MatchingBuilder::Done() const {
  if (remaining_ == 0) return true;
  if (CheapestToCome() < best_cost_ - (best_cost_ >> kToleranceShift)) return false;
  return best_short_cost_ <= Bearable() || CheapestToCome() > Bearable();
}

// The cover that results if the rest goes out greedily.
void MatchingBuilder::Consider() {
  const int64_t more = remaining_ > 0 ? 1 : 0;
  const int64_t at_least = Cost(peeled_.count() + more, int64_t{used_} + remaining_);
  if (at_least >= best_cost_ && (best_short_cost_ <= Bearable() || at_least > Bearable())) return;
  tail_.Build(left_.data());
  tail_excess_ = remaining_ == 0 ? 0 : ((tail_.total_length() - remaining_) << kExcessBits) / remaining_;
  Keep(peeled_.count());
}

void MatchingBuilder::ConsiderShifts() {
  tail_.BuildShifts(left_.data());
  Keep(kShifts);
}

void MatchingBuilder::Keep(int32_t peeled) {
  const int32_t count = std::max(peeled, 0) + tail_.stages().count();
  const int64_t length = used_ + tail_.total_length();
  looks_.push_back({peeled, length, Cost(count, length)});
  best_cost_ = std::min(best_cost_, Cost(count, length));
  if (Short(length)) best_short_cost_ = std::min(best_short_cost_, Cost(count, length));
  if (kept_look_ < 0 || !Preferred(looks_[kept_look_])) KeepTail();
}

// Keeps the tail of the last look if that look would be chosen now: often it is chosen in the end.
void MatchingBuilder::KeepTail() {
  if (!Preferred(looks_.back())) return;
  kept_look_ = static_cast<int32_t>(looks_.size()) - 1;
  kept_ = tail_.stages();
}

// Appends the first `count` to the result.
void MatchingBuilder::Append(const MatchingList& scaled, int32_t count) {
  result_.to.insert(result_.to.end(), scaled.to.begin(), scaled.to.begin() + static_cast<int64_t>(count) * servers_);
  for (int32_t i = 0; i < count; ++i) result_.weights.push_back(scaled.weights[i] << shift_);
}

// The greedy end wastes a share of what is left that changes slowly. It is worth a look again when that share has come
// down to what the matchings that one could save cost, or, if it has, when the cover is short.
int32_t MatchingBuilder::NextLook() const {
  const int64_t wasted = (tail_excess_ * remaining_) >> kExcessBits;
  const int64_t saved = std::min(startup_ * servers_, int64_t{1} << (62 - kExcessBits));
  const int64_t short_enough = total_ >> kToleranceShift;
  const int64_t bearable = wasted > saved ? std::max(saved, short_enough) : short_enough;
  const int64_t left = (bearable << kExcessBits) / std::max<int64_t>(tail_excess_, 1);
  return static_cast<int32_t>(std::min<int64_t>(left, remaining_ - remaining_ / kLooks));
}

// Chooses the first of the covers that cost about as much as the best possible one: it has the fewest matchings. A
// short one is preferred as long as it does not cost much more.
void MatchingBuilder::Finish(const int64_t* units) {
  const int64_t optimum = remaining_ == 0 ? best_cost_ : std::min(best_cost_, CheapestToCome());
  const int64_t enough = std::max(best_cost_, optimum + (optimum >> kToleranceShift));
  auto chosen = std::find_if(looks_.begin(), looks_.end(), [&](const Look& look) { return Preferred(look); });
  if (chosen == looks_.end()) {
    chosen = std::find_if(looks_.begin(), looks_.end(), [&](const Look& look) { return look.cost <= enough; });
  }
  Append(peeled_, std::max(chosen->peeled, 0));
  if (chosen - looks_.begin() == kept_look_) return Append(kept_, kept_.count());
  if (&*chosen != &looks_.back()) BuildTail(units, *chosen);
  Append(tail_.stages(), tail_.stages().count());
}

// Builds the tail again, as it was when `look` was taken.
void MatchingBuilder::BuildTail(const int64_t* units, const Look& look) {
  Load(units);
  for (int32_t i = 0; i < look.peeled; ++i) {
    const int16_t* to = peeled_.matching(i);
    for (int32_t row = 0; row < servers_; ++row) {
      int32_t& left = left_[static_cast<size_t>(row) * servers_ + to[row]];
      left -= static_cast<int32_t>(std::min<int64_t>(left, peeled_.weights[i]));
    }
  }
  if (look.peeled == kShifts) {
    tail_.BuildShifts(left_.data());
  } else {
    tail_.Build(left_.data());
  }
}

// The first threshold: no matching weighs more than any server's best pair allows.
void MatchingBuilder::SetThreshold() {
  const int32_t n = servers_;
  threshold_ = remaining_;
  std::vector<int64_t>& largest_of_column = column_sums_;
  std::fill(largest_of_column.begin(), largest_of_column.end(), 0);
  for (int32_t row = 0; row < n; ++row) {
    int32_t largest = 0;
    for (int32_t column = 0; column < n; ++column) {
      const int32_t reach = Reach(row, column);
      largest = std::max(largest, reach);
      largest_of_column[column] = std::max<int64_t>(largest_of_column[column], reach);
    }
    threshold_ = std::min(threshold_, largest);
  }
  for (const int64_t largest : largest_of_column) threshold_ = std::min(threshold_, static_cast<int32_t>(largest));
  for (int32_t row = 0; row < n; ++row) FindUsable(row);
}

// Finds the usable entries of a whole row, several at a time: that is quicker than finding those that have changed.
void MatchingBuilder::FindUsable(int32_t row) {
  const int32_t row_spare = row_spare_[row];
  const int32_t threshold = threshold_;
  uint64_t* words = usable(row);
  std::fill(words, words + words_, 0);
  for (int32_t first = 0; first < servers_; first += 32) {
    const int32_t* left = &left_[static_cast<size_t>(row) * servers_ + first];
    const int32_t* column_spare = &column_spare_[first];
    const int32_t count = std::min(servers_ - first, 32);
    uint32_t bits = 0;
    for (int32_t i = 0; i < count; ++i) {
      bits |= left[i] + std::min(row_spare, column_spare[i]) >= threshold ? kBits.bit[i] : 0;
    }
    words[first / 64] |= uint64_t{bits} << (first % 64);
  }
}

// Gives `root` a column, and other rows on the way another one. Breadth-first; a search that fails goes on after the
// threshold came down. With a threshold of one it never fails: fill up every server's spare time, and all lines have
// equal sums, so that there is a perfect matching of pairs that have units or time to spare.
template <bool kOneWord>
void MatchingBuilder::Augment(int32_t root) {
  const int32_t words = kOneWord ? 1 : words_;
  for (int32_t word = 0; word < words; ++word) unseen_[word] = all_[word];
  queued_ = 0;
  queue_[queued_++] = static_cast<int16_t>(root);
  for (int32_t head = 0;; ++head) {
    if (head == queued_) head = LowerThreshold<kOneWord>();
    const int16_t row = queue_[head];
    const int32_t open = FirstCommon(usable(row), free_.data(), words);
    if (open >= 0) {
      ClearBit(free_.data(), open);
      via_[open] = row;
      return Flip(static_cast<int16_t>(open));
    }
    TakeCommon(usable(row), unseen_.data(), words, [&](int32_t column) {
      via_[column] = row;
      queue_[queued_++] = column_from_[column];
    });
  }
}

// A search that fails has reached one row more than columns (Hall), so a matching must use a pair of these rows and
// another column, and weighs no more than the best of those pairs: the threshold goes down to that, less the slack, and
// every matching weighs as much as any could, less the slack. Other rows learn of pairs that now come up to it when a
// search that fails includes them; until then they have fewer choices, and the threshold is right all the same. Returns
// from where in the queue to go on: no row before that has learned of a pair.
template <bool kOneWord>
int32_t MatchingBuilder::LowerThreshold() {
  const int32_t words = kOneWord ? 1 : words_;
  int32_t largest = 1;
  for (int32_t i = 0; i < queued_; ++i) {
    int32_t most = 0;
    ForEachBit(unseen_.data(), words, [&](int32_t column) { most = std::max(most, Reach(queue_[i], column)); });
    most_reach_[i] = most;
    largest = std::max(largest, most);
  }
  threshold_ = std::min(threshold_, largest - (largest >> SlackShift(servers_)));
  int32_t first = queued_;
  for (int32_t i = queued_ - 1; i >= 0; --i) {
    if (most_reach_[i] < threshold_) continue;
    first = i;
    uint64_t* bits = usable(queue_[i]);
    ForEachBit(unseen_.data(), words, [&](int32_t column) {
      bits[column / 64] |= uint64_t{Reach(queue_[i], column) >= threshold_} << (column % 64);
    });
  }
  return first;
}

// Along the path by which the search reached a free column, each row takes the column behind it.
void MatchingBuilder::Flip(int16_t column) {
  while (column != kNone) {
    const int16_t row = via_[column];
    const int16_t before = row_to_[row];
    row_to_[row] = column;
    column_from_[column] = row;
    column = before;
  }
}

int32_t MatchingBuilder::SmallestMatched() const {
  int32_t smallest = remaining_;
  for (int32_t row = 0; row < servers_; ++row) smallest = std::min(smallest, Reach(row, row_to_[row]));
  return smallest;
}

// Every pair moves up to `weight` units; servers that have fewer spend time that they can spare.
void MatchingBuilder::Peel(int32_t weight) {
  const int32_t n = servers_;
  const int16_t* to = row_to_.data();
  peeled_.to.insert(peeled_.to.end(), to, to + n);
  peeled_.weights.push_back(weight);
  remaining_ -= weight;
  used_ += weight;
  for (int32_t row = 0; row < n; ++row) {
    const int32_t column = to[row];
    int32_t& left = left_[static_cast<size_t>(row) * n + column];
    const int32_t waste = std::max(weight - left, 0);
    left -= weight - waste;
    row_spare_[row] -= waste;
    column_spare_[column] -= waste;
  }
}

// Pairs moved units and servers spent spare time, so what comes up to the threshold is found again; rows whose column
// no longer does give it up.
void MatchingBuilder::Refresh() {
  for (int32_t row = 0; row < servers_; ++row) {
    FindUsable(row);
    const int16_t matched = row_to_[row];
    if ((usable(row)[matched / 64] & BitOf(matched)) != 0) continue;
    SetBit(free_.data(), matched);
    row_to_[row] = kNone;
    column_from_[matched] = kNone;
  }
}

}  // namespace fastjax::planner
