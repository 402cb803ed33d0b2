// How long a plan's stages are together, from its transfers and the matrix alone.
#ifndef FASTJAX_BENCHMARKS_CPP_LENGTH_H_
#define FASTJAX_BENCHMARKS_CPP_LENGTH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/planner.h"

namespace fastjax::bench {

// Rows that the busiest server sends to, or receives from, others on each of its NICs: no schedule takes less.
double RailBound(const planner::Topology& topology, const std::vector<int64_t>& traffic);

// Rows of every stage's busiest NIC, summed over stages, by RailBound. `plan` has planned `traffic`. Of exchanges of
// more than 320 devices, whose transfers take gigabytes, nothing is said.
std::optional<double> LengthByBound(const std::vector<int64_t>& traffic, planner::Planner* plan);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_LENGTH_H_
