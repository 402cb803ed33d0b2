// The extension module: host plans, and the handlers to register with XLA.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "handlers/contract.h"
#include "handlers/handlers.h"
#include "planner/levelling.h"
#include "planner/matchings.h"
#include "planner/planner.h"
#include "planner/schedule.h"
#include "planner/table.h"
#include "python/parts.h"
#include "rendezvous/turns.h"
#include "runtime/copy_pool.h"
#include "runtime/plan_cache.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace fastjax {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Transfer;
using python::ToNumpy;
using python::TopologyWords;
using python::ToTopology;

using Traffic = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Targets = nb::ndarray<const int16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Scheduler ToScheduler(int64_t scheduler) {
  if (scheduler < 0 || scheduler >= planner::NumSchedulers()) {
    throw std::invalid_argument("unknown scheduler number");
  }
  return static_cast<Scheduler>(scheduler);
}

class HostPlan {
 public:
  // Plans the traffic; keeps the matrix, which the planner refers to.
  HostPlan(Traffic traffic, const TopologyWords& topology, int64_t scheduler, int64_t row_bytes)
      : traffic_(std::move(traffic)), planner_(ToTopology(topology), ToScheduler(scheduler), row_bytes) {
    const auto devices = static_cast<size_t>(planner_.topology().devices());
    if (traffic_.shape(0) != devices || traffic_.shape(1) != devices) {
      throw std::invalid_argument("traffic does not fit the topology");
    }
    const nb::gil_scoped_release release;
    planner_.Plan(traffic_.data());
  }

  void PlanWith(const Targets& targets, const Weights& weights) {
    const auto servers = static_cast<size_t>(planner_.topology().servers);
    if (targets.shape(1) != servers || targets.shape(0) != weights.shape(0)) {
      throw std::invalid_argument("matchings do not fit the topology");
    }
    planner::MatchingList matchings;
    matchings.servers = planner_.topology().servers;
    matchings.to.assign(targets.data(), targets.data() + targets.size());
    matchings.weights.assign(weights.data(), weights.data() + weights.size());
    CheckMatchings(matchings);
    const nb::gil_scoped_release release;
    planner_.PlanWith(traffic_.data(), matchings);
  }

  nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> Transfers(bool transposed) {
    const planner::TransferRange all = planner().DeviceTransfers(planner::kEveryDevice);
    std::vector<Transfer> transfers(all.begin(), all.end());
    if (transposed) {
      std::reverse(transfers.begin(), transfers.end());
      for (Transfer& transfer : transfers) transfer = planner::Transposed(transfer, planner().num_stages());
    }
    std::vector<uint8_t> records;
    for (const Transfer& t : transfers) {
      python::AddRecord(&records, static_cast<int8_t>(t.phase), t.stage, t.src, t.dst, t.origin, t.target, t.first_row,
                        t.rows);
    }
    return ToNumpy(std::move(records));
  }

  nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> Table(int32_t device, bool transposed) {
    if (device < 0 || device >= planner().topology().devices()) throw std::out_of_range("no such device");
    std::vector<int32_t> words(static_cast<size_t>(planner::TableWords(planner().topology(), planner().scheduler())));
    if (!planner::WriteTable(&planner(), device, words.data())) {
      throw std::invalid_argument("a block of 2^31 rows or more does not fit a stage table");
    }
    if (transposed) planner::TransposeTable(words.data());
    return ToNumpy(std::move(words));
  }

  // Targets, one row for each matching after another, and weights; none for schedulers without matchings.
  nb::tuple Matchings() {
    const planner::MatchingList* matchings = planner().matched().matchings;
    if (matchings == nullptr) return nb::make_tuple(ToNumpy(std::vector<int16_t>()), ToNumpy(std::vector<int64_t>()));
    return nb::make_tuple(ToNumpy(matchings->to), ToNumpy(matchings->weights));
  }

  // What servers send to each other, as stages count it; for schedulers with matchings.
  nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> Units() {
    const int64_t* units = planner().matched().units;
    const int64_t servers = planner().topology().servers;
    return ToNumpy(units == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(units, units + servers * servers));
  }

  nb::list Choices() {
    nb::list choices;
    if (planner().choices() == nullptr) return choices;
    for (const planner::Choice& choice : *planner().choices()) {
      choices.append(nb::make_tuple(static_cast<int32_t>(choice.scheduler), choice.planned, choice.stages,
                                    choice.exchange_seconds, choice.planning_seconds));
    }
    return choices;
  }

  // Nothing can be asked of a plan that is only half prepared, since memory ran out.
  Planner& planner() {
    if (planner_.traffic() == nullptr) throw std::logic_error("memory ran out in this plan: make it again");
    return planner_;
  }

 private:
  static void CheckMatchings(const planner::MatchingList& matchings) {
    for (int32_t i = 0; i < matchings.count(); ++i) {
      std::vector<bool> receives(static_cast<size_t>(matchings.servers));
      for (int32_t s = 0; s < matchings.servers; ++s) {
        const int32_t d = matchings.matching(i)[s];
        if (d == planner::kIdle) continue;
        if (d < 0 || d >= matchings.servers || receives[static_cast<size_t>(d)]) {
          throw std::invalid_argument("matchings are not one-to-one");
        }
        receives[static_cast<size_t>(d)] = true;
      }
      if (matchings.weights[i] <= 0) throw std::invalid_argument("a matching's weight is not positive");
    }
  }

  Traffic traffic_;
  Planner planner_;
};

// By number: name, description, order, whether every device's own NIC must work, whether its plans are another's.
nb::list SchedulerTraits() {
  nb::list all;
  for (int32_t number = 0; number < planner::NumSchedulers(); ++number) {
    const auto& traits = planner::GetSchedulerInfo(static_cast<Scheduler>(number)).traits;
    all.append(nb::make_tuple(traits.name, traits.description, traits.order,
                              traits.nics == planner::NicNeed::kEachDevice,
                              traits.choosing == planner::Choosing::kChooses));
  }
  return all;
}

// Of arguments that fastjax.host.levelling has checked.
nb::tuple LevelExperts(const Words& rows, int32_t servers, int32_t devices, int32_t copies, int64_t cost_rows) {
  const auto experts = static_cast<int32_t>(rows.size());
  const planner::LevellingShape shape{servers, devices, experts / (servers * devices), copies};
  std::vector<int32_t> slots(static_cast<size_t>(shape.ranks()) * copies);
  std::vector<int32_t> levelled(rows.size() + slots.size());
  planner::Leveller(shape, cost_rows).Level(rows.data(), {slots.data(), levelled.data()});
  return nb::make_tuple(ToNumpy(slots), ToNumpy(levelled));
}

// As jax.ffi registers them.
nb::dict Registrations(const std::vector<handlers::Target>& all) {
  const auto capsule = [](XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); };
  nb::dict targets;
  for (const handlers::Target& target : all) {
    nb::dict stages;
    if (target.instantiate != nullptr) stages["instantiate"] = capsule(target.instantiate);
    stages["execute"] = capsule(target.execute);
    targets[target.name] = stages;
  }
  return targets;
}

// By target: (name, whether it is needed) of the operands, (name, kind, whether it is optional) of the attributes, and
// the place of the operand whose memory the result takes, or -1.
nb::dict DeclaredCalls() {
  nb::dict calls;
  for (const handlers::CustomCall* call : handlers::GetContract().calls()) {
    nb::list operands;
    for (const handlers::OperandRule& rule : call->operands) operands.append(nb::make_tuple(rule.name, rule.needed));
    nb::list attributes;
    for (const handlers::Attribute& attribute : call->attributes) {
      attributes.append(nb::make_tuple(attribute.name, attribute.kind(), attribute.optional));
    }
    calls[call->target] = nb::make_tuple(operands, attributes, call->in_place);
  }
  return calls;
}

}  // namespace

// nanobind's macro must define the entry point at namespace level, hence not inside the anonymous one.
NB_MODULE(_core, m) {
  m.doc() = "fastjax's planner and its handlers for XLA.";
  m.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def(
      "registrations", [](bool emulates) { return Registrations(handlers::CpuTargets(emulates)); }, nb::arg("emulates"),
      "The CPU handlers, by custom-call target, as jax.ffi registers them; of devices that emulate GPUs, or not.");
  m.def(
      "gpu_registrations", [](const std::string& platform) { return Registrations(handlers::GpuTargets(platform)); },
      nb::arg("platform"), "The handlers of CUDA or of ROCm programs.");
  m.def("declared_calls", &DeclaredCalls,
        "By target: (name, needed) of the operands that handlers find, (name, kind, optional) of the attributes, and "
        "the place of the operand whose memory the result takes, or -1.");
  m.def(
      "record_of_turns", [] { return Turns::Get().TakeRecord(); },
      "For tests: (channel, partition) of exchanges that have begun, in order, where FASTJAX_DELAY_STARTS is set.");
  python::RegisterGpu(&m);
  m.def("level_experts", &LevelExperts, nb::arg("rows"), nb::arg("servers"), nb::arg("devices"), nb::arg("copies"),
        nb::arg("cost_rows"), "The expert of each slot of each device, and the rows of each group of each device.");
  m.def("plans_made", &PlansMade, "How many plans traced programs have made in this process.");
  m.def(
      "copy_threads", [] { return CopyPool::Get().threads(); },
      "Threads that move rows between the devices of this process.");
  m.def("scheduler_traits", &SchedulerTraits,
        "By number: name, description, order, whether every device's own NIC must work, and whether its plans are "
        "those of another scheduler, which HostPlan.chosen names.");
  m.attr("fallback_scheduler") = static_cast<int32_t>(planner::kFallback);
  m.def(
      "table_words",
      [](const TopologyWords& topology, int64_t scheduler) {
        return planner::TableWords(ToTopology(topology), ToScheduler(scheduler));
      },
      nb::arg("topology"), nb::arg("scheduler"), "int32 words of one device's stage table.");
  python::RegisterStatistics(&m);
  python::RegisterNetwork(&m);
  python::RegisterSimulation(&m);
  nb::class_<HostPlan>(m, "HostPlan", "Plans traffic on the host.")
      .def(nb::init<Traffic, const TopologyWords&, int64_t, int64_t>(), nb::arg("traffic"), nb::arg("topology"),
           nb::arg("scheduler"), nb::arg("row_bytes"))
      .def("plan_with", &HostPlan::PlanWith, nb::arg("targets"), nb::arg("weights"),
           "Plans anew, with these matchings, if they cover the traffic.")
      .def_prop_ro("num_stages", [](HostPlan& self) { return self.planner().num_stages(); })
      .def_prop_ro(
          "chosen", [](HostPlan& self) { return static_cast<int32_t>(self.planner().chosen()); },
          "Number of the scheduler, or of that which auto chose.")
      .def("transfers", &HostPlan::Transfers, nb::arg("transposed") = false, "Every transfer, as packed records.")
      .def("table", &HostPlan::Table, nb::arg("device"), nb::arg("transposed") = false,
           "The stage table of one device.")
      .def("matchings", &HostPlan::Matchings, "Targets and weights of the matchings that stages were cut from.")
      .def("units", &HostPlan::Units, "What servers send to each other, as stages count it.")
      .def_prop_ro(
          "startup_units", [](HostPlan& self) { return self.planner().matched().startup; },
          "What a stage costs, as stages count.")
      .def("choices", &HostPlan::Choices,
           "(scheduler, planned, stages, seconds of the exchange, of planning) of each that auto chose between.")
      .def("lower_bound", [](HostPlan& self) { return self.planner().LowerBound(); })
      .def("predicted_time", [](HostPlan& self) { return self.planner().PredictedTime(); })
      .def("planning_time", [](HostPlan& self) { return self.planner().PlanningTime(); });
}

}  // namespace fastjax
