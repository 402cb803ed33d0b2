// Traffic that planners are timed with.
#ifndef FASTJAX_BENCHMARKS_CPP_WORKLOAD_H_
#define FASTJAX_BENCHMARKS_CPP_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <vector>

namespace fastjax::bench {

enum class Skew : int32_t {
  kPairZipf = 0,  // pairs of devices have shares 1 / rank^0.8, ranks drawn at random: as in FAST
  kUniform = 1,   // equal shares, but for a jitter of a tenth, without which every stage would be the same
  kExpert = 2,    // receivers have shares 1 / rank^0.8, ranks drawn at random, alike for all senders; every flow is
                  // drawn around its share with the variance of a count
};
inline constexpr Skew kSkews[] = {Skew::kPairZipf, Skew::kUniform, Skew::kExpert};

const char* Name(Skew skew);

// Row-major devices x devices, `mean_rows` rows a pair on average, those of a device with itself included.
std::vector<int64_t> MakeTraffic(Skew skew, int32_t devices, double mean_rows, std::mt19937_64* random);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_WORKLOAD_H_
