// The lists of rows that the GPU's kernels are timed on.
#ifndef FASTJAX_BENCHMARKS_CPP_GPU_CASES_H_
#define FASTJAX_BENCHMARKS_CPP_GPU_CASES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/gpu_driver/lists.h"

namespace fastjax::bench {

// Rows to 32 peers, of a popularity that falls as 1 / rank^0.8.
struct GpuCase {
  bool gathers;  // runs lie apart where they are read, or where they are written
  int64_t row_bytes;
  int32_t updates;             // runs to each peer; 0: every row is a run of its own
  std::optional<double> goal;  // the share of a copy's bandwidth that is wanted
  int32_t sources = 0;         // 0: rows are moved; else each is the sum of so many, of bfloat16s
};

std::string NameOf(const GpuCase& which);

// All that are timed with lines of about so many bytes.
std::vector<GpuCase> CasesOf(int64_t bytes);

// At most `bytes` bytes, in whole rows, from src to dst: side by side at one end, and at the other in random order.
gpu_support::MoveLine MakeLine(const GpuCase& which, int64_t bytes, std::byte* dst, const std::byte* src,
                               gpu_support::Random* random);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_GPU_CASES_H_
