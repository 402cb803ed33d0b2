#include "report.h"

#include <algorithm>
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

// Of a table: what stands above a column, and how wide it is.
struct Column {
  const char* group;
  const char* name;
  int width;
};
using Columns = std::vector<Column>;

const Columns& PlannerColumns() {
  static const Columns columns = {
      {"", "devices", 7},  {"", "traffic", 13},      {"plan us", "p25", 10},    {"", "median", 10},
      {"", "max", 10},     {"", "processor", 10},    {"stages", "only us", 10}, {"", "matchings", 10},
      {"", "stages", 8},   {"length", "/ bound", 9}, {"time", "/ bound", 8},    {"memory", "KiB", 8},
      {"table", "KiB", 8},
  };
  return columns;
}

const Columns& TextbookColumns() {
  static const Columns columns = {
      {"", "devices", 7},           {"", "traffic", 13},       {"", "", 23},
      {"plan us", "p25", 10},       {"", "median", 10},        {"", "max", 10},
      {"", "processor", 10},        {"stages", "only us", 10}, {"", "matchings", 10},
      {"by planner", "median", 10}, {"", "processor", 10},     {"", "matchings", 10},
      {"memory", "KiB", 8},
  };
  return columns;
}

void PrintHeads(const Columns& columns) {
  for (const Column& column : columns) std::printf("%*s ", column.width, column.group);
  std::printf("\n");
  for (const Column& column : columns) std::printf("%*s ", column.width, column.name);
  std::printf("\n");
}

void PrintLine(const Columns& columns, const std::vector<std::string>& texts) {
  for (size_t i = 0; i < columns.size(); ++i) std::printf("%*s ", columns[i].width, texts[i].c_str());
  std::printf("\n");
  std::fflush(stdout);
}

std::string Kibi(int64_t bytes) { return Format("%.1f", static_cast<double>(bytes) / 1024); }

void PrintTextbook(const Result& result, const TextbookResult& book) {
  const PlannerResult& ours = result.planner;
  PrintLine(TextbookColumns(),
            {std::to_string(result.devices), Name(result.skew), Name(book.search), Format("%.1f", book.plan.p25),
             Format("%.1f", book.plan.median), Format("%.1f", book.plan.max), Format("%.1f", book.processor.median),
             Format("%.1f", book.stages_only.median), Format("%.1f", book.stages),
             Format("%.1f", book.plan.median / ours.plan.median),
             Format("%.1f", book.processor.median / ours.processor.median),
             Format("%.1f", book.stages / ours.matchings.mean), Kibi(book.memory_bytes)});
}

std::string SchedulerName(const Settings& settings) {
  return std::string(planner::SchedulerNames()[static_cast<size_t>(settings.scheduler)]);
}

std::string Json(const Range& range) {
  return "{\"mean\": " + Json(range.mean) + ", \"max\": " + Json(range.max) + "}";
}

std::string Json(const PlannerResult& planner) {
  std::ostringstream json;
  json << "{\n   \"plan_us\": " << Json(planner.plan) << ",\n   \"stages_only_us\": " << Json(planner.stages_only)
       << ",\n   \"processor_us\": " << Json(planner.processor) << ",\n   \"matchings\": " << Json(planner.matchings)
       << ", \"stages\": " << Json(planner.stages)
       << ",\n   \"length_by_bound\": " << (planner.length_by_bound ? Json(*planner.length_by_bound) : "null")
       << ", \"predicted_by_bound\": " << Json(planner.predicted_by_bound)
       << ",\n   \"memory_bytes\": " << planner.memory_bytes << ", \"table_bytes\": " << planner.table_bytes << "}";
  return json.str();
}

std::string Json(const TextbookResult& textbook) {
  std::ostringstream json;
  json << "{\n   \"name\": " << Quoted(Name(textbook.search)) << ",\n   \"plan_us\": " << Json(textbook.plan)
       << ",\n   \"stages_only_us\": " << Json(textbook.stages_only)
       << ",\n   \"processor_us\": " << Json(textbook.processor) << ",\n   \"stages\": " << Json(textbook.stages)
       << ", \"length_by_bound\": " << Json(textbook.length_by_bound) << ", \"memory_bytes\": " << textbook.memory_bytes
       << "}";
  return json.str();
}

std::string Json(const Result& result) {
  std::ostringstream json;
  json << "{\n  \"devices\": " << result.devices << ", \"skew\": " << Quoted(Name(result.skew))
       << ", \"matrices\": " << result.matrices << ",\n  \"planner\": " << Json(result.planner)
       << ",\n  \"textbooks\": [";
  for (size_t i = 0; i < result.textbooks.size(); ++i) json << (i > 0 ? ", " : "") << Json(result.textbooks[i]);
  json << "]\n }";
  return json.str();
}

}  // namespace

void PrintHeader(const Settings& settings) {
  std::printf("%s: from a matrix to the stage table of one device, %d devices a server, %lld bytes a row; one thread\n",
              SchedulerName(settings).c_str(), kDevicesPerServer, static_cast<long long>(settings.row_bytes));
  PrintHeads(PlannerColumns());
}

void PrintPlanner(const Result& result) {
  const PlannerResult& ours = result.planner;
  PrintLine(PlannerColumns(),
            {std::to_string(result.devices), Name(result.skew), Format("%.1f", ours.plan.p25),
             Format("%.1f", ours.plan.median), Format("%.1f", ours.plan.max), Format("%.1f", ours.processor.median),
             Format("%.1f", ours.stages_only.median), Format("%.1f", ours.matchings.mean),
             Format("%.1f", ours.stages.mean), ours.length_by_bound ? Format("%.6f", ours.length_by_bound->mean) : "-",
             ours.predicted_by_bound ? Format("%.3f", *ours.predicted_by_bound) : "-", Kibi(ours.memory_bytes),
             Kibi(ours.table_bytes)});
}

void PrintTextbooks(const std::vector<Result>& results) {
  const bool any = std::any_of(results.begin(), results.end(), [](const Result& r) { return !r.textbooks.empty(); });
  if (!any) return;
  std::printf("\nIn the same rounds, from the same matrices to the transfers of one device:\n");
  PrintHeads(TextbookColumns());
  for (const Result& result : results) {
    for (const TextbookResult& textbook : result.textbooks) PrintTextbook(result, textbook);
  }
}

bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
               const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n"
       << JsonHead("fastjax-plan-time-2", load_at_start) << ",\n \"scheduler\": " << Quoted(SchedulerName(settings))
       << ", \"row_bytes\": " << settings.row_bytes << ", \"devices_per_server\": " << kDevicesPerServer
       << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) file << (i > 0 ? ", " : "") << Json(results[i]);
  file << "]\n}\n";
  return file.flush().good();
}

}  // namespace fastjax::bench
