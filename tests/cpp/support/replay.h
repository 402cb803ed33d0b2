// Checks of a plan's transfers, which know nothing of how they were made.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_REPLAY_H_
#define FASTJAX_TESTS_CPP_SUPPORT_REPLAY_H_

#include <cstdint>
#include <vector>

#include "planner/topology.h"
#include "planner/transfer.h"
#include "support/traffic.h"

namespace fastjax::test {

// Every row of `traffic` arrives once, on the way it claims to take, through staging rows that hold it, and crosses
// once if it leaves its server. By ranges of rows, since counts need not fit in memory.
void CheckReplay(const planner::Topology& topology, const Matrix& traffic,
                 const std::vector<planner::Transfer>& transfers, const std::vector<int64_t>& staging_rows);

// Phases, stages and devices of each transfer fit together; stages are in order and none is empty.
void CheckShape(const planner::Topology& topology, const std::vector<planner::Transfer>& transfers, int32_t stages);

// In every stage a device sends to one device at most and receives from one at most.
void CheckOneToOne(const planner::Topology& topology, const std::vector<planner::Transfer>& transfers);

// Scale-out keeps its rail, and NICs that have failed carry nothing. Only where no rail has two working ends, all of a
// server pair's rows go from the fastest NIC of the one to the fastest of the other.
void CheckRails(const planner::Topology& topology, const std::vector<planner::Transfer>& transfers);

// Besides, every rail carries its share of each server pair's rows, rounded up or down; where NICs differ, to within a
// row. The share of a rail is in proportion to the slower of its two NICs.
void CheckBalance(const planner::Topology& topology, const Matrix& traffic,
                  const std::vector<planner::Transfer>& transfers);

// The way back: the transfers of the transposed traffic.
std::vector<planner::Transfer> Reversed(const std::vector<planner::Transfer>& transfers);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_REPLAY_H_
