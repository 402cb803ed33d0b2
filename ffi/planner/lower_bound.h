// Computes the time that no schedule can be faster than.
#ifndef FASTJAX_PLANNER_LOWER_BOUND_H_
#define FASTJAX_PLANNER_LOWER_BOUND_H_

#include <cstdint>

#include "planner/topology.h"

namespace fastjax::planner {

// Seconds; the larger of: rows that leave or enter a server, over all its NICs; rows that leave or enter a device, over
// all its links. The only floating point in the planner: it informs and decides nothing.
double LowerBoundSeconds(const Topology& topology, int64_t row_bytes, const int64_t* traffic);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_LOWER_BOUND_H_
