#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "python/register.h"
#include "runtime/statistics.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using Matrix = nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>;

// Seconds: of the last, the mean, the longest; not numbers where there was none.
std::tuple<double, double, double> ToSeconds(const Times& times) {
  if (times.count == 0) return {std::nan(""), std::nan(""), std::nan("")};
  const auto seconds = [](auto nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; };
  return {seconds(times.last), seconds(times.total) / static_cast<double>(times.count), seconds(times.most)};
}

std::string ToName(PlanSource source) {
  switch (source) {
    case PlanSource::kNone:
      return "";
    case PlanSource::kSelf:
      return "own";
    case PlanSource::kGiven:
      return "given";
    case PlanSource::kGivenTransposed:
      return "transposed";
  }
  return "";
}

Matrix TrafficOf(const SiteReport& report) {
  auto owned = std::make_unique<std::vector<int64_t>>(report.statistics.traffic);
  const auto ranks = owned->empty() ? size_t{0} : static_cast<size_t>(report.site->group_size);
  int64_t* data = owned->data();
  const nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  return Matrix(data, {ranks, ranks}, owner);
}

template <typename T>
auto Property(T Statistics::* member) {
  return [member](const SiteReport& report) { return report.statistics.*member; };
}

template <typename T>
auto OfSite(T CallSite::* member) {
  return [member](const SiteReport& report) { return (*report.site).*member; };
}

std::vector<SiteReport> ReportAll() {
  const nb::gil_scoped_release release;
  return Records::Get().Report();
}

}  // namespace

void RegisterStatistics(nb::module_* module) {
  nb::class_<SiteReport>(*module, "SiteReport", "What one call site has done.")
      .def_ro("active", &SiteReport::active)
      .def_prop_ro("name", OfSite(&CallSite::name))
      .def_prop_ro("operation", OfSite(&CallSite::operation))
      .def_prop_ro("program", OfSite(&CallSite::program))
      .def_prop_ro("axis", OfSite(&CallSite::axis))
      .def_prop_ro("group_size", OfSite(&CallSite::group_size))
      .def_prop_ro("platform", OfSite(&CallSite::platform))
      .def_prop_ro("processes", OfSite(&CallSite::process_of), "By partition; empty where one process has all.")
      .def_prop_ro("rails", OfSite(&CallSite::rail_of), "By partition; empty where one process has all.")
      .def_prop_ro("tokens", OfSite(&CallSite::tokens), "Of a device, where the call is of a layer of experts.")
      .def_prop_ro("top_k", OfSite(&CallSite::top_k), "Experts that each of them chooses.")
      .def_prop_ro("topology", OfSite(&CallSite::topology))
      .def_prop_ro("asked_scheduler", OfSite(&CallSite::scheduler), "Its number; -1: a plan is given.")
      .def_prop_ro(
          "plan", [](const SiteReport& report) { return ToName(report.kind.plan); },
          "'own', 'given', 'transposed', or '' for a call site that only plans.")
      .def_prop_ro("reverse", [](const SiteReport& report) { return report.kind.reverse; })
      .def_prop_ro("queues", [](const SiteReport& report) { return report.kind.queues; })
      .def_prop_ro("launches", Property(&Statistics::exchanges))
      .def_prop_ro("failures", Property(&Statistics::failures))
      .def_prop_ro("plans_made", Property(&Statistics::plans_made))
      .def_prop_ro("plans_reused", Property(&Statistics::plans_reused))
      .def_prop_ro("rows", Property(&Statistics::rows))
      .def_prop_ro("total_rows", Property(&Statistics::total_rows))
      .def_prop_ro("dropped_rows", Property(&Statistics::dropped_rows))
      .def_prop_ro("row_bytes", Property(&Statistics::row_bytes))
      .def_prop_ro("total_bytes", Property(&Statistics::total_bytes))
      .def_prop_ro("skew", Property(&Statistics::skew))
      .def_prop_ro("total_skew", Property(&Statistics::total_skew))
      .def_prop_ro("stages", Property(&Statistics::stages))
      .def_prop_ro("scheduler", Property(&Statistics::scheduler))
      .def_prop_ro(
          "planning", [](const SiteReport& report) { return ToSeconds(report.statistics.planning); },
          "Seconds: last, mean, longest.")
      .def_prop_ro("exchange", [](const SiteReport& report) { return ToSeconds(report.statistics.exchange); })
      .def("traffic", &TrafficOf, "As it travelled; empty if nothing has.");
  module->attr("max_ended_reports") = Records::kMaxEnded;
  module->def("collecting", &Records::collecting, "Whether statistics are collected.");
  module->def("collect", &Records::Collect, nb::arg("on"), "Says whether statistics are collected from now on.");
  module->def("site_reports", &ReportAll, "Of every call site that has run while statistics were collected.");
  module->def("reset_reports", [] { Records::Get().Reset(); }, "Forgets all statistics.");
}

}  // namespace fastjax::python
