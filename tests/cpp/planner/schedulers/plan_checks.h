// Everything that can be asked of the plan of one problem.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PLAN_CHECKS_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PLAN_CHECKS_H_

#include <cstdint>
#include <string>

#include "problem.h"

namespace fastjax::test {

// Plans the problem with a new planner, with one that planned something else before, and once more; checks what comes
// out, and that it is the same each time. Returns the first thing wrong, or an empty string.
std::string CheckProblem(const Problem& problem);

// Hash of everything a plan says: its transfers, and the tables of all devices.
uint64_t DigestProblem(const Problem& problem);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_PLAN_CHECKS_H_
