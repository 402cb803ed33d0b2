#include "support/gpu_driver/lists.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fastjax::gpu_support {

void MoveLine::Add(std::byte* dst, const std::byte* src, int64_t run_bytes) {
  if (run_bytes == 0) return;
  const int64_t begin = kernels::NextBegin(end, dst);
  moves.push_back({dst, src, begin, run_bytes});
  end = begin + run_bytes;
  bytes += run_bytes;
}

int32_t BlocksFor(int64_t bytes, int32_t most) {
  constexpr int64_t kTile = kernels::kSmallTileBytes;
  return static_cast<int32_t>(std::clamp<int64_t>((bytes + kTile - 1) / kTile, 1, most));
}

std::vector<int64_t> ZipfRows(int32_t peers, double exponent, int64_t total, Random* random) {
  std::vector<double> weights(static_cast<size_t>(peers));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::pow(static_cast<double>(i + 1), -exponent);
  std::shuffle(weights.begin(), weights.end(), *random);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> rows;
  int64_t given = 0;
  double until = 0;
  for (const double weight : weights) {
    until += weight;
    const int64_t end = std::llround(until / sum * static_cast<double>(total));
    rows.push_back(end - given);
    given = end;
  }
  return rows;
}

std::vector<int64_t> Split(int64_t total, int32_t parts, Random* random) {
  std::vector<int64_t> cuts = {0, total};
  for (int32_t i = 1; i < parts; ++i) cuts.push_back(Below(random, total + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

}  // namespace fastjax::gpu_support
