// Executes a plan row by row, and knows nothing of how it was made.
#ifndef FASTJAX_TESTS_CPP_REPLAY_H_
#define FASTJAX_TESTS_CPP_REPLAY_H_

#include <cstdint>
#include <vector>

#include "planner/topology.h"
#include "planner/transfer.h"
#include "traffic.h"

namespace fastjax::test {

// Every row of `traffic` arrives once, on the way it claims to take, through staging rows that hold it.
void CheckReplay(const planner::Topology& topology, const Matrix& traffic,
                 const std::vector<planner::Transfer>& transfers, const std::vector<int64_t>& staging_rows);

// The same without looking at single rows, for counts that do not fit in memory: blocks are covered once by last
// hops and by scale-out hops, and no two transfers write the same staging row.
void CheckCoverage(const planner::Topology& topology, const Matrix& traffic,
                   const std::vector<planner::Transfer>& transfers, const std::vector<int64_t>& staging_rows);

// Phases, stages and devices of each transfer fit together; stages are in order and none is empty.
void CheckShape(const planner::Topology& topology, const std::vector<planner::Transfer>& transfers, int32_t stages);

// In every stage a device sends to one device at most and receives from one at most.
void CheckOneToOne(const planner::Topology& topology, const std::vector<planner::Transfer>& transfers);

// The way back: the transfers of the transposed traffic.
std::vector<planner::Transfer> Reversed(const std::vector<planner::Transfer>& transfers);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_REPLAY_H_
