// Parts of the records that the programs write: times, summed up, and JSON.
#ifndef FASTJAX_BENCHMARKS_CPP_JSON_H_
#define FASTJAX_BENCHMARKS_CPP_JSON_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastjax::bench {

template <typename Work>
double MicrosecondsOf(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// What several times of one thing are summed up as. In microseconds.
struct Spread {
  int64_t runs;
  double min;
  double p25;
  double median;
  double p75;
  double max;
};
Spread MakeSpread(std::vector<double> microseconds);

std::string Quoted(const std::string& text);
std::string Json(const std::optional<double>& value);
std::string Json(const Spread& spread);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_JSON_H_
