// Covers what servers send to each other by weighted matchings (Birkhoff and von Neumann's decomposition, relaxed): few
// of them, and together about as long as the busiest server needs.
#ifndef FASTJAX_PLANNER_MATCHINGS_H_
#define FASTJAX_PLANNER_MATCHINGS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/cover.h"

namespace fastjax::planner {

// Matchings of any cover at most; docs/design/stages.md derives it.
int64_t MaxMatchings(int32_t servers);
// Those found by search; the rest is the greedy end.
int64_t MaxPeeled(int32_t servers);

class MatchingBuilder {
 public:
  explicit MatchingBuilder(int32_t servers);

  // units[s * n + d]: what s sends to d, not negative, zero on the diagonal. startup: what a matching costs, in units.
  void Build(const int64_t* units, int64_t startup);

  // Takes these matchings as they are: one-to-one, of positive weights. Returns false, and takes none, if they are no
  // cover of units.
  bool Take(const int64_t* units, const MatchingList& matchings);

  const MatchingList& matchings() const { return result_; }
  // The busiest server's units: what no cover is shorter than.
  int64_t bound() const { return bound_; }

 private:
  static constexpr int16_t kNone = -1;
  // Covers whose costs differ by no more than 1 / 2^kToleranceShift are about as good.
  static constexpr int kToleranceShift = 7;
  // To be longer than that, a cover must cost less by more than 1 / 2^kWorthShift.
  static constexpr int kWorthShift = 4;

  // A cover that was looked at: matchings found by search, and what it costs with a greedy end behind them.
  struct Look {
    int32_t peeled;
    int64_t length;
    int64_t cost;
  };

  void FindBound(const int64_t* units);
  void Load(const int64_t* units);
  void Search();
  template <bool kOneWord>
  void PeelAll();
  void Consider();
  void ConsiderShifts();
  void Keep(int32_t peeled);
  void KeepTail();
  void Append(const MatchingList& scaled, int32_t count);
  int32_t NextLook() const;
  bool Done() const;
  bool Short(int64_t length) const { return length <= total_ + (total_ >> kToleranceShift); }
  int64_t Bearable() const { return best_cost_ + (best_cost_ >> kWorthShift); }
  bool Preferred(const Look& look) const { return Short(look.length) && look.cost <= Bearable(); }
  void Finish(const int64_t* units);
  void BuildTail(const int64_t* units, const Look& look);
  int64_t Cost(int64_t matchings, int64_t length) const { return startup_ * matchings + length; }
  // Returns the least cost of a cover not looked at yet: it has at least one matching more, and is no shorter than the
  // bound.
  int64_t CheapestToCome() const { return Cost(peeled_.count() + 1, total_); }

  void SetThreshold();
  template <bool kOneWord>
  int32_t LowerThreshold();
  template <bool kOneWord>
  void Augment(int32_t root);
  void Flip(int16_t column);
  int32_t SmallestMatched() const;
  void Peel(int32_t weight);
  void FindUsable(int32_t row);
  void Refresh();

  uint64_t* usable(int32_t row) { return &usable_[static_cast<size_t>(row) * words_]; }
  // What a matching may weigh as far as this pair goes: its units, and the time that both servers can spare.
  int32_t Reach(int32_t row, int32_t column) const {
    const int32_t spare = row_spare_[row] < column_spare_[column] ? row_spare_[row] : column_spare_[column];
    return left_[static_cast<size_t>(row) * servers_ + column] + spare;
  }

  int32_t servers_;
  int32_t words_;  // 64-bit words that hold a set of servers
  int shift_ = 0;  // units were divided by 2^shift_
  int64_t bound_ = 0;
  int64_t startup_ = 0;
  int32_t total_ = 0;      // units of the busiest server, scaled
  int32_t remaining_ = 0;  // those that are left: tight servers are never kept waiting
  int32_t used_ = 0;       // weights so far
  int32_t threshold_ = 0;

  std::vector<int64_t> column_sums_;
  std::vector<int64_t> uncovered_;  // by Take only
  std::vector<int32_t> left_;
  std::vector<int32_t> row_spare_;  // by how much a server's units fall short of remaining_
  std::vector<int32_t> column_spare_;
  std::vector<uint64_t> usable_;  // per row, columns whose Reach is known to come up to the threshold
  std::vector<uint64_t> all_;
  std::vector<uint64_t> free_;    // columns without a row
  std::vector<uint64_t> unseen_;  // columns that the current search has not reached
  std::vector<int16_t> row_to_;   // the matching, both ways
  std::vector<int16_t> column_from_;
  std::vector<int16_t> via_;         // row by which the search reached a column
  std::vector<int16_t> queue_;       // rows that the search has reached
  std::vector<int32_t> most_reach_;  // by place in the queue: of pairs with a column not reached
  int32_t queued_ = 0;

  MatchingList peeled_;
  GreedyCover tail_;
  int64_t tail_excess_ = 0;
  int64_t best_cost_ = 0;
  int64_t best_short_cost_ = 0;
  std::vector<Look> looks_;
  int32_t kept_look_ = -1;  // whose greedy end kept_ is
  MatchingList kept_;
  MatchingList result_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_MATCHINGS_H_
