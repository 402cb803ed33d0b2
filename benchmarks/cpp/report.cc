#include "report.h"

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "json.h"

namespace fastjax::bench {
namespace {

using bench::Json;  // beside the ones below

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

}  // namespace

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

}  // namespace fastjax::bench
