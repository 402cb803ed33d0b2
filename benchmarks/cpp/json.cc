#include "json.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace fastjax::bench {

Spread MakeSpread(std::vector<double> microseconds) {
  if (microseconds.empty()) std::abort();
  std::sort(microseconds.begin(), microseconds.end());
  const size_t last = microseconds.size() - 1;
  const auto at = [&](size_t quarters) { return microseconds[last * quarters / 4]; };
  return {static_cast<int64_t>(microseconds.size()), at(0), at(1), at(2), at(3), at(4)};
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

std::string Json(const std::optional<double>& value) {
  if (!value) return "null";
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", *value);
  return text;
}

std::string Json(const Spread& spread) {
  return "{\"runs\": " + std::to_string(spread.runs) + ", \"min\": " + Json(spread.min) +
         ", \"p25\": " + Json(spread.p25) + ", \"median\": " + Json(spread.median) + ", \"p75\": " + Json(spread.p75) +
         ", \"max\": " + Json(spread.max) + "}";
}

}  // namespace fastjax::bench
