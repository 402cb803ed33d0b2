// Blocks that go straight from origin to target, in rounds.
//
// SpreadOut takes them by the distance d between devices, r to r + d, and makes each a stage: one-to-one without any
// balancing, so a stage lasts as long as its largest block. Direct, which is what NCCL and RCCL do, sends everything at
// once; the order, server by server and in each place by place, only keeps senders that work through their lists from
// meeting at a receiver.
#ifndef FASTJAX_PLANNER_STRAIGHT_H_
#define FASTJAX_PLANNER_STRAIGHT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/pricing.h"
#include "planner/schedule.h"

namespace fastjax::planner {

class Straight final : public Schedule {
 public:
  Straight(const Topology& topology, int64_t row_bytes, bool staged);

  void Plan(const int64_t* traffic, const MatchingList* given) override;
  int32_t num_stages() const override { return stages_; }
  int64_t block_bound() const override { return block_bound_; }
  void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) override;
  Picoseconds PredictedTime(const int64_t* traffic) override;
  // Peers in other servers of the device that has most.
  int64_t transfers() const { return transfers_; }

 private:
  template <int32_t kSources>
  void Measure(const int64_t* traffic, int32_t src);
  int32_t CountDistances(const int64_t* traffic);
  int64_t LongestUnits(const int64_t* traffic);
  void Lengthen(const int64_t* traffic, int32_t src, int32_t first, int32_t count, int32_t round);
  int64_t UnitsOf(int32_t src, int32_t dst, int64_t rows) const;

  Topology topology_;
  Pricing pricing_;
  bool staged_;
  std::vector<Rate> nics_;
  int32_t stages_ = 0;
  int64_t slowest_counted_ = 1;
  std::vector<int64_t> used_;     // by distance, where it makes a stage: nonzero if any block leaves its server
  std::vector<int64_t> longest_;  // by round: the distance, or that of servers times their size and that of places
  // By receiving device: rows and blocks from other servers, and rows from its own.
  std::vector<int64_t> received_rows_;
  std::vector<int64_t> received_transfers_;
  std::vector<int64_t> received_inside_;
  int64_t block_bound_ = 0;
  // The times of the busiest device.
  Picoseconds out_ = 0;
  int64_t transfers_ = 0;
  int64_t inside_ = 0;
};

// Mostly the search for the longest block of each round.
inline constexpr PlanningCost kStraightPricing = {300'000, /*block=*/900};

// A device sends to and receives from each device once at most.
int64_t MaxEntriesOneTransferPerPeer(const Topology& topology);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_STRAIGHT_H_
