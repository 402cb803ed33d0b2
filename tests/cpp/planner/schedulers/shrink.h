// Makes a problem smaller as long as it stays wrong.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_SHRINK_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_SHRINK_H_

#include <cstdint>

#include "problem.h"

namespace fastjax::test {

// Zeros and halves entries of the matrix, and forgets what was planned before, where wrong(problem) stays true.
template <typename Wrong>
Problem Shrink(Problem problem, Wrong wrong) {
  const auto shrinks = [&](Matrix* matrix, size_t first, size_t last, int64_t divisor) {
    const Matrix before = *matrix;
    for (size_t i = first; i < last; ++i) (*matrix)[i] /= divisor;
    if (*matrix == before) return false;
    if (wrong(problem)) return true;
    *matrix = before;
    return false;
  };
  constexpr int64_t kToZero = INT64_MAX;
  for (Matrix* matrix : {&problem.before.traffic, &problem.traffic.traffic}) {
    for (size_t length = matrix->size(); length > 0; length /= 2) {
      for (size_t first = 0; first + length <= matrix->size(); first += length) {
        shrinks(matrix, first, first + length, kToZero);
      }
    }
    for (size_t i = 0; i < matrix->size(); ++i) {
      while (shrinks(matrix, i, i + 1, 2)) {
      }
    }
  }
  return problem;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_SHRINK_H_
