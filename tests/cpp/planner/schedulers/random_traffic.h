// Random traffic of the kinds that planners get wrong.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_RANDOM_TRAFFIC_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_RANDOM_TRAFFIC_H_

#include <cstdint>

#include "choices.h"
#include "planner/topology.h"
#include "support/traffic.h"

namespace fastjax::test {

// Rows that a block may have at most: a planner adds up all of them in int64.
int64_t MaxBlockRows(const planner::Topology& topology);

// A matrix of any kind: those of MakeCases, or of random_traffic.cc.
Case DrawTraffic(const planner::Topology& topology, Choices* choices);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_RANDOM_TRAFFIC_H_
