#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/planner.h"
#include "python/parts.h"
#include "runtime/statistics.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

// Seconds: of the last, the mean, the longest; not numbers where there was none.
nb::tuple ToSeconds(const Times& times) {
  if (times.count == 0) return nb::make_tuple(std::nan(""), std::nan(""), std::nan(""));
  const auto seconds = [](auto nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; };
  return nb::make_tuple(seconds(times.last), seconds(times.total) / static_cast<double>(times.count),
                        seconds(times.most));
}

std::string_view SchedulerName(int64_t number) {
  return number < 0 ? "" : planner::NameOf(static_cast<planner::Scheduler>(number));
}

// What fastjax.SiteStats has, under the names that it has there; what it makes of others; and for tests, processes and
// rails of devices.
nb::dict Describe(const SiteReport& report) {
  const CallSite& site = *report.site;
  const Statistics& of = report.statistics;
  const PlanSource plan = report.kind.plan;
  const bool moves = plan != PlanSource::kNone;
  const bool given = plan == PlanSource::kGiven || plan == PlanSource::kGivenTransposed;
  nb::dict told;
  told["name"] = site.name;
  told["operation"] = site.operation;
  told["program"] = site.program;
  told["active"] = report.active;
  told["axis"] = site.axis;
  told["group_size"] = site.group_size;
  told["platform"] = site.platform;
  told["words"] = site.topology;
  told["processes"] = site.process_of;
  told["rails"] = site.rail_of;
  told["direction"] = report.kind.reverse ? "reverse" : "forward";
  told["plan"] = !given ? "own" : plan == PlanSource::kGiven ? "given" : "transposed";
  told["asked_scheduler"] = SchedulerName(site.scheduler);
  told["scheduler"] = SchedulerName(of.scheduler);
  told["stages"] = of.stages;
  told["launches"] = of.exchanges;
  told["failures"] = of.failures;
  told["plans_made"] = of.plans_made;
  told["plans_reused"] = of.plans_reused;
  told["plans_given"] = given ? of.exchanges : 0;
  told["rows"] = moves ? of.rows : 0;
  told["total_rows"] = moves ? of.total_rows : 0;
  told["dropped_rows"] = of.dropped_rows;
  told["row_bytes"] = of.row_bytes;
  told["total_bytes"] = moves ? of.total_bytes : 0;
  told["skew"] = of.skew;
  told["mean_skew"] = of.total_skew / static_cast<double>(std::max<int64_t>(1, of.exchanges));
  told["traffic"] = ToNumpy(of.traffic);
  told["planning_time"] = ToSeconds(of.planning);
  told["exchange_time"] = ToSeconds(of.exchange);
  told["queued"] = report.kind.queues;
  told["tokens"] = site.tokens * site.group_size;
  told["choices"] = site.tokens * site.top_k * site.group_size;
  return told;
}

nb::list ReportAll() {
  std::vector<SiteReport> reports;
  {
    const nb::gil_scoped_release release;
    reports = Records::Get().Report();
  }
  nb::list all;
  for (const SiteReport& report : reports) all.append(Describe(report));
  return all;
}

}  // namespace

void RegisterStatistics(nb::module_* module) {
  module->def("collecting", &Records::collecting, "Whether statistics are collected.");
  module->def("collect", &Records::Collect, nb::arg("on"), "Says whether statistics are collected from now on.");
  module->def("site_reports", &ReportAll, "Of every call site that has run while statistics were collected, in words.");
  module->def("reset_reports", [] { Records::Get().Reset(); }, "Forgets all statistics.");
}

}  // namespace fastjax::python
