#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

namespace fastjax::bench {
namespace {

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Format(const char* format, const std::optional<double>& value) {
  return value ? Format(format, *value) : "-";
}

std::string SchedulerName(const Settings& settings) {
  return std::string(planner::SchedulerNames()[static_cast<size_t>(settings.scheduler)]);
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.compare(0, kKey.size(), kKey) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
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

std::string Json(const PlannerResult& planner) {
  std::ostringstream json;
  json << "{\n   \"plan_us\": " << Json(planner.plan) << ",\n   \"stages_only_us\": " << Json(planner.stages_only)
       << ",\n   \"matchings\": " << Json(planner.matchings) << ", \"stages\": " << Json(planner.stages)
       << ",\n   \"length_by_bound\": " << Json(planner.length_by_bound)
       << ", \"predicted_by_bound\": " << Json(planner.predicted_by_bound)
       << ",\n   \"memory_bytes\": " << planner.memory_bytes << ", \"table_bytes\": " << planner.table_bytes << "}";
  return json.str();
}

std::string Json(const TextbookResult& textbook) {
  std::ostringstream json;
  json << "{\n   \"plan_us\": " << Json(textbook.plan) << ",\n   \"stages_only_us\": " << Json(textbook.stages_only)
       << ",\n   \"stages\": " << Json(textbook.stages) << ", \"length_by_bound\": " << Json(textbook.length_by_bound)
       << ", \"memory_bytes\": " << textbook.memory_bytes << "}";
  return json.str();
}

std::string Json(const Result& result) {
  std::ostringstream json;
  json << "{\n  \"devices\": " << result.devices << ", \"skew\": " << Quoted(Name(result.skew))
       << ", \"matrices\": " << result.matrices << ",\n  \"planner\": " << Json(result.planner)
       << ",\n  \"textbook\": " << (result.textbook ? Json(*result.textbook) : "null") << "\n }";
  return json.str();
}

}  // namespace

double LoadAverage() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

void PrintHeader(const Settings& settings) {
  std::printf("%s: from a matrix to the stage table of one device, %d devices a server, %lld bytes a row; one thread\n",
              SchedulerName(settings).c_str(), kDevicesPerServer, static_cast<long long>(settings.row_bytes));
  std::printf("textbook: from the same matrix to the transfers of one device; stages only: until stages are known\n\n");
  std::printf("%7s %-13s | %9s %9s %9s %9s | %9s %7s %12s %9s %8s %8s | %9s %9s %9s %7s | %6s %6s\n", "", "",
              "planner us", "", "", "stages", "", "", "length", "predicted", "memory", "table", "textbook us", "",
              "stages", "", "ratio", "ratio");
  std::printf("%7s %-13s | %9s %9s %9s %9s | %9s %7s %12s %9s %8s %8s | %9s %9s %9s %7s | %6s %6s\n", "devices",
              "traffic", "min", "median", "max", "only", "matchings", "stages", "/ bound", "/ bound", "KiB", "KiB",
              "min", "median", "only", "stages", "plan", "stages");
}

void PrintResult(const Result& result) {
  const PlannerResult& ours = result.planner;
  std::printf("%7d %-13s | %9.1f %9.1f %9.1f %9.1f | %9s %7.1f %12s %9s %8.0f %8.1f | ", result.devices,
              Name(result.skew), ours.plan.min, ours.plan.median, ours.plan.max, ours.stages_only.median,
              Format("%.1f", ours.matchings).c_str(), ours.stages, Format("%.6f", ours.length_by_bound).c_str(),
              Format("%.3f", ours.predicted_by_bound).c_str(), static_cast<double>(ours.memory_bytes) / 1024,
              static_cast<double>(ours.table_bytes) / 1024);
  if (result.textbook) {
    const TextbookResult& book = *result.textbook;
    std::printf("%9.1f %9.1f %9.1f %7.1f | %6.1f %6.1f\n", book.plan.min, book.plan.median, book.stages_only.median,
                book.stages, book.plan.median / ours.plan.median, book.stages / ours.stages);
  } else {
    std::printf("%9s %9s %9s %7s | %6s %6s\n", "-", "-", "-", "-", "-", "-");
  }
  std::fflush(stdout);
}

bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
               const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n \"schema\": \"fastjax-plan-time-1\",\n \"machine\": {\"cpu\": " << Quoted(CpuModel())
       << ", \"usable_cores\": " << std::thread::hardware_concurrency() << ", \"load_average\": " << Json(load_at_start)
       << "},\n \"versions\": {\"fastjax\": " << Quoted(FASTJAX_VERSION)
       << ", \"compiler\": " << Quoted(FASTJAX_COMPILER) << "},\n \"scheduler\": " << Quoted(SchedulerName(settings))
       << ", \"row_bytes\": " << settings.row_bytes << ", \"devices_per_server\": " << kDevicesPerServer
       << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) file << (i > 0 ? ", " : "") << Json(results[i]);
  file << "]\n}\n";
  return file.flush().good();
}

}  // namespace fastjax::bench
