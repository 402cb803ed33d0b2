// Microseconds from a traffic matrix to one device's stage table, with a warm planner and another matrix every time.
// 8192 devices take gigabytes and a minute: name them to have them.
//
//   plan_time [--devices 32,64] [--scheduler fast] [--row-bytes 4096] [--json FILE]
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "report.h"
#include "timing.h"

namespace {

using fastjax::bench::kDevicesPerServer;
using fastjax::bench::Result;
using fastjax::bench::Settings;

constexpr const char* kUsage = "plan_time [--devices 32,64] [--scheduler fast] [--row-bytes 4096] [--json FILE]";

struct Options {
  std::vector<int32_t> devices = {16, 32, 64, 96, 160, 320, 1024};
  Settings settings = {fastjax::planner::Scheduler::kFast, 4096};
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

bool ParseScheduler(std::string_view text, fastjax::planner::Scheduler* scheduler) {
  const auto& names = fastjax::planner::SchedulerNames();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != text) continue;
    *scheduler = static_cast<fastjax::planner::Scheduler>(i);
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

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: %s\n--devices are multiples of %d, two servers or more\n", kUsage, kDevicesPerServer);
    return 2;
  }
  const double load = fastjax::bench::LoadAverage();
  std::vector<Result> results;
  for (const fastjax::bench::Skew skew : fastjax::bench::kSkews) {
    for (const int32_t devices : options.devices) {
      results.push_back(fastjax::bench::Run(options.settings, devices, skew));
      fastjax::bench::Print(results.back());
    }
  }
  if (!options.json.empty() && !fastjax::bench::WriteJson(options.json, options.settings, load, results)) {
    std::fprintf(stderr, "plan_time: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}
