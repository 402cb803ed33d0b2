#include "json.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

namespace fastjax::bench {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.compare(0, kKey.size(), kKey) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Spread MakeSpread(std::vector<double> microseconds) {
  if (microseconds.empty()) std::abort();
  std::sort(microseconds.begin(), microseconds.end());
  const size_t last = microseconds.size() - 1;
  const auto at = [&](size_t quarters) { return microseconds[last * quarters / 4]; };
  return {static_cast<int64_t>(microseconds.size()), at(0), at(1), at(2), at(3), at(4)};
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

std::string Json(const std::optional<double>& value) { return value ? Format("%.9g", *value) : "null"; }

std::string Json(const Spread& spread) {
  std::ostringstream json;
  json << "{\"runs\": " << spread.runs << ", \"min\": " << Json(spread.min) << ", \"p25\": " << Json(spread.p25)
       << ", \"median\": " << Json(spread.median) << ", \"p75\": " << Json(spread.p75)
       << ", \"max\": " << Json(spread.max) << "}";
  return json.str();
}

std::string JsonHead(const std::string& schema, double load_at_start) {
  std::ostringstream json;
  json << " \"schema\": " << Quoted(schema) << ",\n \"machine\": {\"cpu\": " << Quoted(CpuModel())
       << ", \"usable_cores\": " << std::thread::hardware_concurrency() << ", \"load_average\": " << Json(load_at_start)
       << "},\n \"versions\": {\"fastjax\": " << Quoted(FASTJAX_VERSION)
       << ", \"compiler\": " << Quoted(FASTJAX_COMPILER) << "}";
  return json.str();
}

double LoadAverage() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

}  // namespace fastjax::bench
