#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/arguments.h"
#include "python/register.h"
#include "python/transfers.h"
#include "simulator/messages.h"
#include "simulator/schedule.h"
#include "simulator/simulator.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using simulator::Fabric;
using simulator::Message;
using simulator::Messages;
using simulator::Simulator;
using simulator::Synchronization;

using Records = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class Simulation {
 public:
  Simulation(const Records& transfers, const TopologyWords& topology, int64_t row_bytes, int8_t synchronization,
             bool balance_first, int32_t pieces, double oversubscription, std::vector<double> efficiencies,
             bool whole_senders, double resolution)
      : messages_(simulator::GatherMessages(Unpack(transfers.data(), transfers.size()), pieces)),
        simulator_(simulator::Schedule(messages_, ToTopology(topology), row_bytes,
                                       Fabric{static_cast<Synchronization>(synchronization), balance_first,
                                              oversubscription, std::move(efficiencies), whole_senders}),
                   resolution) {}

  bool Advance(int64_t events) {
    const nb::gil_scoped_release release;
    return simulator_.Advance(events);
  }

  double Done() const {
    const auto all = static_cast<double>(simulator_.end().size());
    return all == 0 ? 1 : static_cast<double>(simulator_.done()) / all;
  }

  // Messages that wait for themselves, by way of others.
  int64_t FirstStuck() const {
    for (int32_t i = 0; i < static_cast<int32_t>(messages_.all.size()); ++i) {
      if (!simulator_.is_done(i)) return i;
    }
    return -1;
  }

  nb::dict Columns() const {
    nb::dict columns;
    columns["phase"] = Column<int8_t>([](const Message& m) { return static_cast<int8_t>(m.phase); });
    columns["stage"] = Column<int32_t>([](const Message& m) { return m.stage; });
    columns["src"] = Column<int32_t>([](const Message& m) { return m.src; });
    columns["dst"] = Column<int32_t>([](const Message& m) { return m.dst; });
    columns["rows"] = Column<int64_t>([](const Message& m) { return m.rows; });
    columns["ready"] = Times(simulator_.ready());
    columns["start"] = Times(simulator_.start());
    columns["end"] = Times(simulator_.end());
    return columns;
  }

  nb::tuple OfTransfers() const {
    return nb::make_tuple(ToNumpy(messages_.of_transfers), ToNumpy(messages_.last_of_transfers));
  }

 private:
  template <typename T, typename Get>
  nb::ndarray<nb::numpy, T, nb::ndim<1>> Column(Get get) const {
    std::vector<T> column;
    column.reserve(messages_.all.size());
    for (const Message& message : messages_.all) column.push_back(get(message));
    return ToNumpy(std::move(column));
  }

  // Those of messages; gates come after them.
  nb::ndarray<nb::numpy, double, nb::ndim<1>> Times(const std::vector<double>& times) const {
    return ToNumpy(std::vector<double>(times.begin(), times.begin() + static_cast<int64_t>(messages_.all.size())));
  }

  Messages messages_;
  Simulator simulator_;
};

}  // namespace

void RegisterSimulation(nb::module_* module) {
  nb::class_<Simulation>(*module, "Simulation", "A plan, simulated flow by flow.")
      .def(nb::init<const Records&, const TopologyWords&, int64_t, int8_t, bool, int32_t, double, std::vector<double>,
                    bool, double>(),
           nb::arg("transfers"), nb::arg("topology"), nb::arg("row_bytes"), nb::arg("synchronization"),
           nb::arg("balance_first"), nb::arg("pieces"), nb::arg("oversubscription"), nb::arg("efficiencies"),
           nb::arg("whole_senders"), nb::arg("resolution"))
      .def("advance", &Simulation::Advance, nb::arg("events"),
           "Goes on for so many events; whether nothing is left to happen.")
      .def_prop_ro("done", &Simulation::Done, "The share of messages that have come.")
      .def_prop_ro("first_stuck", &Simulation::FirstStuck, "A message that has not come; -1 if there is none.")
      .def("columns", &Simulation::Columns, "What messages were and when, by field.")
      .def("of_transfers", &Simulation::OfTransfers, "The first and the last message of each transfer, or -1.");
}

}  // namespace fastjax::python
