// What several times of one thing are summed up as.
#ifndef FASTJAX_BENCHMARKS_CPP_SPREAD_H_
#define FASTJAX_BENCHMARKS_CPP_SPREAD_H_

#include <cstdint>
#include <vector>

namespace fastjax::bench {

// In microseconds.
struct Spread {
  int64_t runs;
  double min;
  double p25;
  double median;
  double p75;
  double max;
};
Spread MakeSpread(std::vector<double> microseconds);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_SPREAD_H_
