// Where rows come to: what transfers bring, found by those who send it on.
#ifndef FASTJAX_SIMULATOR_ARRIVALS_H_
#define FASTJAX_SIMULATOR_ARRIVALS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/transfer.h"

namespace fastjax::simulator {

inline constexpr int32_t kDeviceBits = 15;  // of a device's number

// Whether anything is in flight; others are rows that stay where they are.
inline bool Moves(const planner::Transfer& transfer) { return transfer.src != transfer.dst && transfer.rows > 0; }
inline bool IsSentOn(const planner::Transfer& transfer) { return transfer.src != transfer.origin; }

// Rows of a block that come to a device.
struct Arrival {
  uint64_t where;  // block and device
  int64_t first_row;
  int64_t end_row;
  int32_t transfer;
};

// All arrivals of transfers whose rows come to no device twice, to their targets, and nowhere after those.
class Arrivals {
 public:
  using Range = std::pair<size_t, size_t>;

  // Throws std::invalid_argument, with words for the user, where rows come to a device twice, or not to their target,
  // or are said to be where they have not come. Devices must be below 2^15. `transfers` must stay.
  explicit Arrivals(const std::vector<planner::Transfer>& transfers);

  const Arrival& operator[](size_t place) const { return sorted_[place]; }
  // Those that bring a transfer's rows to its sender. Throws std::invalid_argument where some do not come.
  Range Bringing(const planner::Transfer& transfer) const;

 private:
  struct Found {
    Range range;
    int64_t missing;  // rows
  };

  void Collect();
  void CheckOnce() const;
  void CheckTargets() const;
  // Those that bring a transfer's rows to a device.
  Found Find(const planner::Transfer& transfer, int32_t device) const;

  const std::vector<planner::Transfer>& transfers_;
  std::vector<Arrival> sorted_;  // by block, device and row; they do not overlap
};

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_ARRIVALS_H_
