// The yardstick: FAST's steps, each done as a textbook does it. Server pairs are split by Birkhoff's theorem, with a
// perfect matching found from nothing for every stage; tiles are balanced greedily; stages are not cut into chunks.
#ifndef FASTJAX_BENCHMARKS_CPP_TEXTBOOK_H_
#define FASTJAX_BENCHMARKS_CPP_TEXTBOOK_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "matching.h"
#include "planner/topology.h"
#include "planner/transfer.h"

namespace fastjax::bench {

// How a stage's matching is found; all else is the same.
enum class Search : int32_t {
  kKuhn = 0,          // as textbooks have it
  kHopcroftKarp = 1,  // the better algorithm, on edges that are kept from stage to stage
};
inline constexpr Search kSearches[] = {Search::kKuhn, Search::kHopcroftKarp};

// Like the planner, it keeps its memory from plan to plan.
class Textbook {
 public:
  Textbook(const planner::Topology& topology, Search search);

  // From rows between devices, row-major devices x devices, to stages; the matrix must outlive List.
  void Decompose(const int64_t* traffic);
  // Then every transfer that `device` takes part in, by stage and phase.
  const std::vector<planner::Transfer>& List(int32_t device);

  int32_t num_stages() const { return static_cast<int32_t>(weights_.size()); }
  // Rows of the busiest server's rails, which the lengths of all stages add up to.
  int64_t length() const { return length_; }
  // Known once something was listed.
  int64_t StagingRows(int32_t device) const { return staging_rows_[device]; }

 private:
  // Rows [first_row, first_row + rows) of a block, at `position` of a rail's list; local indices.
  struct Segment {
    int64_t position;
    int64_t first_row;
    int64_t rows;
    int32_t origin;
    int32_t target;
  };
  // Segments of a rail's list that are still to be listed.
  struct RailList {
    int32_t next = 0;
    int32_t end = 0;
  };
  // What a stage moves on every rail of a server pair: rows [begin, end) of the rails' lists.
  struct Slice {
    int32_t source;
    int32_t target;
    int64_t begin;
    int64_t end;
  };

  size_t Pair(int32_t source, int32_t target) const { return static_cast<size_t>(source) * n_ + target; }
  size_t Rail(int32_t source, int32_t target, int32_t rail) const { return Pair(source, target) * m_ + rail; }
  int64_t Quota(size_t pair, int32_t rail) const { return sums_[pair] / m_ + (rail < sums_[pair] % m_ ? 1 : 0); }

  void SumTiles();
  void Pad();
  template <typename Matching>
  void Peel(Matching* matching);
  void SetStaging();
  void Reserve(int32_t source, int32_t target, int32_t holder, std::vector<int64_t>* bases);

  void Balance(int32_t source, int32_t target);
  void AppendRows(const int64_t* tile, int32_t origin, int64_t begin, int64_t end, int64_t* position);

  void ListLocal(int32_t device);
  void ListStage(int32_t stage, int32_t server, int32_t local);
  Slice NextSlice(int32_t source, int32_t target, int64_t rows);
  void ListHops(planner::Phase phase, int32_t stage, const Slice& slice, int32_t local, int32_t Segment::* end);
  void ListRail(planner::Phase phase, int32_t stage, const Slice& slice, int32_t rail);
  template <typename Use>
  void ForEachPart(const Slice& slice, int32_t rail, Use use) const;
  void Push(planner::Phase phase, int32_t stage, const Slice& slice, int32_t rail, const Segment& part);
  void Advance(const Slice& slice);

  planner::Topology topology_;
  int32_t n_;
  int32_t m_;
  const int64_t* traffic_ = nullptr;
  std::variant<Kuhn, HopcroftKarp> matching_;

  // Per server pair.
  std::vector<int64_t> sums_;
  std::vector<int64_t> left_;  // padded matrix, less what stages took
  std::vector<int64_t> sent_;  // rows of the rails' lists that earlier stages moved
  std::vector<int64_t> row_room_;
  std::vector<int64_t> column_room_;
  int64_t length_ = 0;

  // Per stage, those of servers one after the other.
  std::vector<int32_t> targets_;
  std::vector<int32_t> sources_;
  std::vector<int64_t> weights_;

  // Per server pair and rail.
  std::vector<int64_t> send_base_;  // staging rows of the rail's sender and receiver at which the pair's begin
  std::vector<int64_t> receive_base_;
  std::vector<RailList> lists_;
  std::vector<int64_t> staging_rows_;  // per device

  std::vector<int64_t> row_sums_;  // of a tile
  std::vector<int64_t> taken_;     // rows of each origin that have a rail
  std::vector<Segment> segments_;
  std::vector<planner::Transfer> transfers_;
};

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_TEXTBOOK_H_
