// Parts of the records that the programs write: times summed up, and JSON.
#ifndef FASTJAX_BENCHMARKS_CPP_JSON_H_
#define FASTJAX_BENCHMARKS_CPP_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastjax::bench {

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

std::string Format(const char* format, double value);
std::string Quoted(const std::string& text);
std::string Json(const std::optional<double>& value);
std::string Json(const Spread& spread);

// The members that every record begins with: what it is, and what it was made on and with.
std::string JsonHead(const std::string& schema, double load_at_start);

// Of the last minute; negative where the system does not say.
double LoadAverage();

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_JSON_H_
