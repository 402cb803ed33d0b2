// Lists of moves, laid out as the transport lays them out, and traffic to make them of.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_LISTS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_LISTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kernels/moves.h"
#include "support/random.h"

namespace fastjax::gpu_support {

using test::Below;
using test::Random;
using test::RandomBytes;

// Runs to be moved, and the line that they lie on.
struct MoveLine {
  std::vector<kernels::Move> moves;
  int64_t end = 0;
  int64_t bytes = 0;

  // Runs without bytes are left out.
  void Add(std::byte* dst, const std::byte* src, int64_t run_bytes);
};

// Lengths of runs: short ones, those around what the kernels cut at, and up to the longest.
inline int64_t RandomLength(int64_t longest, Random* random) {
  constexpr int64_t kTile = kernels::kTileBytes, kCuts[] = {16, 32, 512, kernels::kSmallTileBytes, kTile, 3 * kTile};
  switch (Below(random, 8)) {
    case 0:
      return std::max<int64_t>(1, kCuts[Below(random, std::size(kCuts))] + Below(random, 65) - 32);
    case 1:
      return 1 + Below(random, longest);
    case 2:
      return 1 + Below(random, 1000);
    default:
      return 1 + Below(random, 64);
  }
}

// As many blocks as the transport launches for a line of so many bytes, where it may launch `most`.
int32_t BlocksFor(int64_t bytes, int32_t most);

// Rows to each of `peers`, `total` of them together, by a popularity that falls as 1 / rank^exponent, in random order.
std::vector<int64_t> ZipfRows(int32_t peers, double exponent, int64_t total, Random* random);

// `parts` numbers of random size with the sum `total`; some may be zero.
std::vector<int64_t> Split(int64_t total, int32_t parts, Random* random);

}  // namespace fastjax::gpu_support

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_LISTS_H_
