// Times the planner.
#ifndef FASTJAX_BENCHMARKS_CPP_TIMING_H_
#define FASTJAX_BENCHMARKS_CPP_TIMING_H_

#include <cstdint>
#include <optional>

#include "json.h"
#include "planner/planner.h"
#include "workload.h"

namespace fastjax::bench {

inline constexpr int32_t kDevicesPerServer = 8;
inline constexpr planner::Scheduler kScheduler = planner::Scheduler::kFast;
inline constexpr int64_t kRowBytes = 4096;

// The mean and the largest of a quantity that every matrix has.
struct Range {
  double mean;
  double max;
};

// "bound" is the busiest server's share of a NIC.
struct PlannerResult {
  Spread plan;         // from the matrix to one device's stage table
  Spread stages_only;  // the part of it before anything is listed
  Spread processor;    // of the whole, without what other programs take; of rounds
  Range matchings;     // before they are cut into stages
  Range stages;
  std::optional<Range> length_by_bound;
  std::optional<double> predicted_by_bound;  // by the cost model, of times; a mean
  int64_t memory_bytes;                      // beside the matrix and the table
  int64_t table_bytes;
};

struct Result {
  int32_t devices;
  Skew skew;
  int32_t matrices;
  PlannerResult planner;
};

Result Run(int32_t devices, Skew skew);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_TIMING_H_
