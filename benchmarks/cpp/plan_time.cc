// Microseconds from a traffic matrix to one device's stage table, with a warm planner and another matrix every time.
// 8192 devices take gigabytes and a minute: name them to have them.
//
//   plan_time [--devices 32,64] [--scheduler fast] [--row-bytes 4096] [--json FILE]
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

constexpr const char* kUsage = "plan_time [--devices 32,64] [--scheduler fast] [--row-bytes 4096] [--json FILE]";

struct Options {
  std::vector<int32_t> devices = {16, 32, 64, 96, 160, 320, 1024};
  Settings settings = {planner::Scheduler::kFast, 4096};
  std::string json;
};

template <typename T>
bool ParsePositive(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value > 0;
}

bool ParseDevices(std::string_view text, std::vector<int32_t>* devices) {
  devices->clear();
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(item.size() < text.size() ? item.size() + 1 : item.size());
    int32_t count = 0;
    if (!ParsePositive(item, &count) || count < 2 * kDevicesPerServer || count % kDevicesPerServer != 0) return false;
    devices->push_back(count);
  }
  return !devices->empty();
}

bool ParseScheduler(std::string_view text, planner::Scheduler* scheduler) {
  const auto& names = planner::SchedulerNames();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != text) continue;
    *scheduler = static_cast<planner::Scheduler>(i);
    return true;
  }
  return false;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    bool good = false;
    if (name == "--devices") good = ParseDevices(value, &options->devices);
    if (name == "--scheduler") good = ParseScheduler(value, &options->settings.scheduler);
    if (name == "--row-bytes") good = ParsePositive(value, &options->settings.row_bytes);
    if (name == "--json") {
      options->json = value;
      good = !value.empty();
    }
    if (!good) return false;
  }
  return argc % 2 == 1;
}

std::string SchedulerName(const Settings& settings) {
  return std::string(planner::SchedulerNames()[static_cast<size_t>(settings.scheduler)]);
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

bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
               const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n"
       << JsonHead("fastjax-plan-time-3", load_at_start) << ",\n \"scheduler\": " << Quoted(SchedulerName(settings))
       << ", \"row_bytes\": " << settings.row_bytes << ", \"devices_per_server\": " << kDevicesPerServer
       << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) file << (i > 0 ? ",\n" : "\n") << Json(results[i]);
  file << "\n ]\n}\n";
  return file.flush().good();
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: %s\n--devices are multiples of %d, two servers or more\n", kUsage, kDevicesPerServer);
    return 2;
  }
  const double load = LoadAverage();
  std::vector<Result> results;
  for (const Skew skew : kSkews) {
    for (const int32_t devices : options.devices) {
      results.push_back(Run(options.settings, devices, skew));
      Print(results.back());
    }
  }
  if (!options.json.empty() && !WriteJson(options.json, options.settings, load, results)) {
    std::fprintf(stderr, "plan_time: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) { return fastjax::bench::Main(argc, argv); }
