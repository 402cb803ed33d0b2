// A random problem for a planner.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PROBLEM_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PROBLEM_H_

#include <cstdint>
#include <ostream>

#include "choices.h"
#include "planner/planner.h"
#include "planner/topology.h"
#include "support/traffic.h"

namespace fastjax::test {

struct Problem {
  planner::Topology topology;
  planner::Scheduler scheduler;
  int64_t row_bytes;
  Case traffic;
  Case before;  // what a planner that is used again planned first
};

// Small topologies most of the time, none of more devices than that.
Problem DrawProblem(planner::Scheduler scheduler, int32_t max_devices, Choices* choices);

// What makes the problem again, for a person to read; the matrix if it is small.
void Print(const Problem& problem, std::ostream* out);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PROBLEM_H_
