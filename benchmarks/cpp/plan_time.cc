// Microseconds from a traffic matrix to one device's stage table, with a warm planner and another matrix every time.
// 8192 devices take gigabytes and a minute: name them to have them.
//
//   plan_time [--devices 32,64] [--json FILE]
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "timing.h"

namespace fastjax::bench {
namespace {

using bench::Json;  // beside the ones below

struct Options {
  std::vector<int32_t> devices = {16, 32, 64, 96, 160, 320, 1024};
  std::string json;
};

bool ParseDevices(std::string_view text, std::vector<int32_t>* devices) {
  devices->clear();
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(item.size() < text.size() ? item.size() + 1 : item.size());
    int32_t count = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), count);
    if (error != std::errc() || end != item.data() + item.size()) return false;
    if (count < 2 * kDevicesPerServer || count % kDevicesPerServer != 0) return false;
    devices->push_back(count);
  }
  return !devices->empty();
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    bool good = false;
    if (name == "--devices") good = ParseDevices(value, &options->devices);
    if (name == "--json") {
      options->json = value;
      good = !value.empty();
    }
    if (!good) return false;
  }
  return argc % 2 == 1;
}

std::string Json(const Range& range) {
  return "{\"mean\": " + Json(range.mean) + ", \"max\": " + Json(range.max) + "}";
}

std::string Json(const PlannerResult& planner) {
  std::ostringstream json;
  json << "{\"plan_us\": " << Json(planner.plan) << ", \"stages_only_us\": " << Json(planner.stages_only)
       << ", \"processor_us\": " << Json(planner.processor) << ", \"matchings\": " << Json(planner.matchings)
       << ", \"stages\": " << Json(planner.stages)
       << ", \"length_by_bound\": " << (planner.length_by_bound ? Json(*planner.length_by_bound) : "null")
       << ", \"predicted_by_bound\": " << Json(planner.predicted_by_bound)
       << ", \"memory_bytes\": " << planner.memory_bytes << ", \"table_bytes\": " << planner.table_bytes << "}";
  return json.str();
}

// In one line, so that versions of a record can be compared.
std::string Json(const Result& result) {
  std::ostringstream json;
  json << "  {\"devices\": " << result.devices << ", \"skew\": " << Quoted(Name(result.skew))
       << ", \"matrices\": " << result.matrices << ", \"planner\": " << Json(result.planner) << "}";
  return json.str();
}

void Print(const Result& result) {
  const PlannerResult& planner = result.planner;
  std::printf("%5d devices, %-13s: %.1f us (%.1f processor, %.1f stages only), %.1f matchings, %.1f stages\n",
              result.devices, Name(result.skew), planner.plan.median, planner.processor.median,
              planner.stages_only.median, planner.matchings.mean, planner.stages.mean);
  std::fflush(stdout);
}

bool WriteJson(const std::string& path, double load_at_start, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n"
       << JsonHead("fastjax-plan-time-3", load_at_start)
       << ",\n \"scheduler\": " << Quoted(std::string(planner::SchedulerNames()[static_cast<size_t>(kScheduler)]))
       << ", \"row_bytes\": " << kRowBytes << ", \"devices_per_server\": " << kDevicesPerServer << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) file << (i > 0 ? ",\n" : "\n") << Json(results[i]);
  file << "\n ]\n}\n";
  return file.flush().good();
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: plan_time [--devices 32,64] [--json FILE]\n--devices are multiples of %d, two servers or more\n",
        kDevicesPerServer);
    return 2;
  }
  const double load = LoadAverage();
  std::vector<Result> results;
  for (const Skew skew : kSkews) {
    for (const int32_t devices : options.devices) {
      results.push_back(Run(devices, skew));
      Print(results.back());
    }
  }
  if (!options.json.empty() && !WriteJson(options.json, load, results)) {
    std::fprintf(stderr, "plan_time: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) { return fastjax::bench::Main(argc, argv); }
