// Parts of the records that the programs write.
#ifndef FASTJAX_BENCHMARKS_CPP_JSON_H_
#define FASTJAX_BENCHMARKS_CPP_JSON_H_

#include <optional>
#include <string>

#include "spread.h"

namespace fastjax::bench {

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
