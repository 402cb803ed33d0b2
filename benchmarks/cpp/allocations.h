// Counts what this program takes from operator new; one thread.
#ifndef FASTJAX_BENCHMARKS_CPP_ALLOCATIONS_H_
#define FASTJAX_BENCHMARKS_CPP_ALLOCATIONS_H_

#include <cstdint>

namespace fastjax::bench {

struct Allocations {
  int64_t calls;
  int64_t live_bytes;
};

Allocations GetAllocations();

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_ALLOCATIONS_H_
