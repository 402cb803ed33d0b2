// Times the planner, and the textbook beside it, on the same matrices in the same run.
#ifndef FASTJAX_BENCHMARKS_CPP_CONTEST_H_
#define FASTJAX_BENCHMARKS_CPP_CONTEST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/planner.h"
#include "workload.h"

namespace fastjax::bench {

inline constexpr int32_t kDevicesPerServer = 8;

struct Settings {
  planner::Scheduler scheduler;
  int64_t row_bytes;
};

// Of several times of one thing, in microseconds.
struct Spread {
  int64_t runs;
  double min;
  double p25;
  double median;
  double p75;
  double max;
};
Spread MakeSpread(std::vector<double> microseconds);

// Counts are means over the matrices; "bound" is the busiest server's share of a NIC.
struct PlannerResult {
  Spread plan;                      // from the matrix to one device's stage table
  Spread stages_only;               // the part of it before anything is listed
  Spread processor;                 // of the whole, without what other programs take; of rounds
  std::optional<double> matchings;  // before they are cut into stages, where the planner says
  double stages;
  std::optional<double> length_by_bound;
  std::optional<double> predicted_by_bound;  // by the cost model, of times
  int64_t memory_bytes;                      // beside the matrix and the table
  int64_t table_bytes;
};

struct TextbookResult {
  Spread plan;         // from the matrix to one device's transfers
  Spread stages_only;  // the decomposition
  Spread processor;
  double stages;
  double length_by_bound;
  int64_t memory_bytes;
};

struct Result {
  int32_t devices;
  Skew skew;
  int32_t matrices;
  PlannerResult planner;
  std::optional<TextbookResult> textbook;  // up to kTextbookDevices: it takes too long for more
};
inline constexpr int32_t kTextbookDevices = 320;

Result Run(const Settings& settings, int32_t devices, Skew skew);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_CONTEST_H_
