#include "workload.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fastjax::bench {
namespace {

constexpr double kExponent = 0.8;

// Shares that add up to `total`, in random order.
std::vector<double> Zipf(size_t count, double total, std::mt19937_64* random) {
  std::vector<double> shares(count);
  double sum = 0;
  for (size_t rank = 0; rank < count; ++rank) sum += shares[rank] = std::pow(static_cast<double>(rank + 1), -kExponent);
  for (double& share : shares) share *= total / sum;
  std::shuffle(shares.begin(), shares.end(), *random);
  return shares;
}

// From one draw: the sum of its four quarters, of mean 0 and variance 1.
double NearlyNormal(std::mt19937_64* random) {
  const uint64_t bits = (*random)();
  double sum = 0;
  for (int quarter = 0; quarter < 4; ++quarter) sum += static_cast<double>((bits >> (16 * quarter)) & 0xFFFF) / 65536;
  return (sum - 2) * std::sqrt(3.0);
}

}  // namespace

const char* Name(Skew skew) {
  constexpr const char* kNames[] = {"pair-zipf 0.8", "uniform", "expert 0.8"};
  return kNames[static_cast<int32_t>(skew)];
}

std::vector<int64_t> MakeTraffic(Skew skew, int32_t devices, double mean_rows, std::mt19937_64* random) {
  const size_t pairs = static_cast<size_t>(devices) * devices;
  std::vector<int64_t> traffic(pairs);
  if (skew == Skew::kPairZipf) {
    const std::vector<double> shares = Zipf(pairs, mean_rows * static_cast<double>(pairs), random);
    std::transform(shares.begin(), shares.end(), traffic.begin(), [](double share) { return std::llround(share); });
  } else if (skew == Skew::kUniform) {
    for (int64_t& rows : traffic) {
      rows = std::llround(mean_rows * (0.9 + 0.2 * static_cast<double>((*random)() % 1024) / 1024));
    }
  } else {
    const std::vector<double> shares = Zipf(devices, mean_rows * devices, random);
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double share = shares[pair % devices];
      traffic[pair] = std::max<int64_t>(std::llround(share + std::sqrt(share) * NearlyNormal(random)), 0);
    }
  }
  return traffic;
}

}  // namespace fastjax::bench
