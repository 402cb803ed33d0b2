// The extension module: host plans, and the handlers to register with XLA.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "handlers/handlers.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "transport/in_process/copy_pool.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace fastjax {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

using Traffic = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using TopologyWords = std::tuple<int32_t, int32_t, int64_t, int64_t, int64_t, int64_t>;

Topology ToTopology(const TopologyWords& words) {
  const auto& [servers, devices, up, out, up_latency, out_latency] = words;
  if (servers < 1 || devices < 1) throw std::invalid_argument("a topology needs at least one device");
  return {servers, devices, up, out, up_latency, out_latency};
}

Scheduler ToScheduler(int64_t scheduler) {
  if (scheduler < 0 || scheduler >= static_cast<int64_t>(planner::SchedulerNames().size())) {
    throw std::invalid_argument("unknown scheduler number");
  }
  return static_cast<Scheduler>(scheduler);
}

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ToNumpy(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const size_t size = owned->size();
  const nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

template <typename T>
void Put(std::vector<uint8_t>* out, T value) {
  const size_t at = out->size();
  out->resize(at + sizeof(T));
  std::memcpy(out->data() + at, &value, sizeof(T));
}

// The fields of fastjax.planning.TRANSFER_DTYPE, packed.
std::vector<uint8_t> Pack(const std::vector<Transfer>& transfers) {
  std::vector<uint8_t> out;
  out.reserve(transfers.size() * 37);
  for (const Transfer& t : transfers) {
    Put(&out, static_cast<int8_t>(t.phase));
    Put(&out, t.stage);
    Put(&out, t.src);
    Put(&out, t.dst);
    Put(&out, t.origin);
    Put(&out, t.target);
    Put(&out, t.first_row);
    Put(&out, t.rows);
  }
  return out;
}

class HostPlan {
 public:
  HostPlan(const Traffic& traffic, const TopologyWords& topology, int64_t scheduler, int64_t row_bytes)
      : planner_(ToTopology(topology), ToScheduler(scheduler), row_bytes) {
    const auto devices = static_cast<size_t>(planner_.topology().devices());
    if (traffic.shape(0) != devices || traffic.shape(1) != devices) {
      throw std::invalid_argument("traffic does not fit the topology");
    }
    const nb::gil_scoped_release release;
    planner_.Plan(traffic.data());
  }

  nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> Transfers() {
    std::vector<Transfer> transfers;
    planner_.AppendTransfers(&transfers);
    return ToNumpy(Pack(transfers));
  }

  nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> Table(int32_t device) {
    if (device < 0 || device >= planner_.topology().devices()) throw std::out_of_range("no such device");
    std::vector<int32_t> words(static_cast<size_t>(planner::TableWords(planner_.topology(), planner_.scheduler())));
    if (!planner::WriteTable(&planner_, device, words.data())) {
      throw std::invalid_argument("a block of 2^31 rows or more does not fit a stage table");
    }
    return ToNumpy(std::move(words));
  }

  Planner& planner() { return planner_; }

 private:
  Planner planner_;
};

nb::capsule Handler(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict Bundle(XLA_FFI_Error* (*instantiate)(XLA_FFI_CallFrame*), XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame*)) {
  nb::dict bundle;
  bundle["instantiate"] = Handler(instantiate);
  bundle["execute"] = Handler(execute);
  return bundle;
}

nb::dict Registrations() {
  nb::dict targets;
  targets["fastjax_plan_v1"] = Bundle(handlers::PlanInstantiate, handlers::PlanExecute);
  targets["fastjax_exchange_v1"] = Bundle(handlers::ExchangeInstantiate, handlers::ExchangeExecute);
  targets["fastjax_plan_exchange_v1"] = Bundle(handlers::PlanExchangeInstantiate, handlers::PlanExchangeExecute);
  targets["fastjax_empty_v1"] = Handler(handlers::EmptyExecute);
  return targets;
}

std::vector<std::string> SchedulerNames() {
  std::vector<std::string> names;
  for (const auto name : planner::SchedulerNames()) names.emplace_back(name);
  return names;
}

}  // namespace

// nanobind's macro must define the entry point at namespace level, hence not inside the anonymous one.
NB_MODULE(_core, m) {
  m.doc() = "fastjax's planner and its handlers for XLA.";
  m.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def("registrations", &Registrations, "The CPU handlers, by custom-call target, as jax.ffi registers them.");
  m.def("plans_made", &handlers::PlansMade, "How many plans traced programs have made in this process.");
  m.def(
      "copy_threads", [] { return transport::in_process::CopyPool::Get().threads(); },
      "Threads that move rows between the devices of this process.");
  m.def("scheduler_names", &SchedulerNames, "The schedulers, in the order of their numbers.");
  m.def(
      "table_words",
      [](const TopologyWords& topology, int64_t scheduler) {
        return planner::TableWords(ToTopology(topology), ToScheduler(scheduler));
      },
      nb::arg("topology"), nb::arg("scheduler"), "int32 words of one device's stage table.");
  m.def(
      "check_table",
      [](const nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& words, int32_t devices,
         int32_t device) -> std::string {
        const char* wrong =
            planner::TableView::Check(words.data(), static_cast<int64_t>(words.size()), devices, device);
        return wrong == nullptr ? "" : wrong;
      },
      nb::arg("words"), nb::arg("devices"), nb::arg("device"), "What is wrong with a stage table; empty if nothing.");
  nb::class_<HostPlan>(m, "HostPlan", "A plan made on the host.")
      .def(nb::init<const Traffic&, const TopologyWords&, int64_t, int64_t>(), nb::arg("traffic"), nb::arg("topology"),
           nb::arg("scheduler"), nb::arg("row_bytes"))
      .def_prop_ro("num_stages", [](HostPlan& self) { return self.planner().num_stages(); })
      .def("transfers", &HostPlan::Transfers, "Every transfer, as packed records.")
      .def("table", &HostPlan::Table, nb::arg("device"), "The stage table of one device.")
      .def(
          "staging_rows", [](HostPlan& self, int32_t device) { return self.planner().StagingRows(device); },
          nb::arg("device"))
      .def("lower_bound", [](HostPlan& self) { return self.planner().LowerBound(); })
      .def("predicted_time", [](HostPlan& self) { return self.planner().PredictedTime(); });
}

}  // namespace fastjax
