#include "report.h"

#include <array>
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

constexpr std::array<int, 20> kWidths = {7, 13, 10, 10, 10, 10, 9, 8, 10, 9, 8, 8, 11, 10, 10, 9, 8, 10, 9, 9};

void PrintColumns(const std::vector<std::string>& columns) {
  for (size_t i = 0; i < columns.size(); ++i) std::printf("%*s ", kWidths[i], columns[i].c_str());
  std::printf("\n");
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
       << ",\n   \"processor_us\": " << Json(planner.processor) << ",\n   \"matchings\": " << Json(planner.matchings)
       << ", \"stages\": " << Json(planner.stages) << ",\n   \"length_by_bound\": " << Json(planner.length_by_bound)
       << ", \"predicted_by_bound\": " << Json(planner.predicted_by_bound)
       << ",\n   \"memory_bytes\": " << planner.memory_bytes << ", \"table_bytes\": " << planner.table_bytes << "}";
  return json.str();
}

std::string Json(const TextbookResult& textbook) {
  std::ostringstream json;
  json << "{\n   \"plan_us\": " << Json(textbook.plan) << ",\n   \"stages_only_us\": " << Json(textbook.stages_only)
       << ",\n   \"processor_us\": " << Json(textbook.processor) << ",\n   \"stages\": " << Json(textbook.stages)
       << ", \"length_by_bound\": " << Json(textbook.length_by_bound) << ", \"memory_bytes\": " << textbook.memory_bytes
       << "}";
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
  PrintColumns(
      {"",       "",      "planner us",  "", "",       "stages", "",         "",           "length", "predicted",
       "memory", "table", "textbook us", "", "stages", "",       "textbook", "by planner", "",       ""});
  PrintColumns({"devices", "traffic",   "min",     "median", "max",       "only",     "matchings",
                "stages",  "/ bound",   "/ bound", "KiB",    "KiB",       "min",      "median",
                "only",    "matchings", "min",     "median", "processor", "matchings"});
}

void PrintResult(const Result& result) {
  const PlannerResult& ours = result.planner;
  std::vector<std::string> columns = {std::to_string(result.devices),
                                      Name(result.skew),
                                      Format("%.1f", ours.plan.min),
                                      Format("%.1f", ours.plan.median),
                                      Format("%.1f", ours.plan.max),
                                      Format("%.1f", ours.stages_only.median),
                                      Format("%.1f", ours.matchings),
                                      Format("%.1f", ours.stages),
                                      Format("%.6f", ours.length_by_bound),
                                      Format("%.3f", ours.predicted_by_bound),
                                      Format("%.0f", static_cast<double>(ours.memory_bytes) / 1024),
                                      Format("%.1f", static_cast<double>(ours.table_bytes) / 1024)};
  if (result.textbook) {
    const TextbookResult& book = *result.textbook;
    columns.insert(columns.end(),
                   {Format("%.1f", book.plan.min), Format("%.1f", book.plan.median),
                    Format("%.1f", book.stages_only.median), Format("%.1f", book.stages),
                    Format("%.1f", book.plan.min / ours.plan.min), Format("%.1f", book.plan.median / ours.plan.median),
                    Format("%.1f", book.processor.median / ours.processor.median),
                    ours.matchings ? Format("%.1f", book.stages / *ours.matchings) : "-"});
  }
  columns.resize(kWidths.size(), "-");
  PrintColumns(columns);
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
