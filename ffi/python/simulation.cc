#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "planner/transfer.h"
#include "python/parts.h"
#include "simulator/messages.h"
#include "simulator/schedule.h"
#include "simulator/simulator.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using planner::Transfer;
using simulator::Fabric;
using simulator::Message;
using simulator::Messages;
using simulator::Simulator;
using simulator::Synchronization;

using Records = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kEventsAtOnce = 20'000;

// The fields of fastjax.schedule.TRANSFER_DTYPE. Rows lie in place.
std::vector<Transfer> Unpack(const Records& records) {
  constexpr size_t kRecord = sizeof(int8_t) + 5 * sizeof(int32_t) + 2 * sizeof(int64_t);
  if (records.size() % kRecord != 0) throw std::invalid_argument("records are not whole");
  const uint8_t* at = records.data();
  const auto take = [&](auto... fields) { ((std::memcpy(fields, at, sizeof(*fields)), at += sizeof(*fields)), ...); };
  std::vector<Transfer> transfers(records.size() / kRecord);
  for (Transfer& t : transfers) {
    t.src_row = t.dst_row = Transfer::kInPlace;
    take(&t.phase, &t.stage, &t.src, &t.dst, &t.origin, &t.target, &t.first_row, &t.rows);
  }
  return transfers;
}

// Runs to the end, unless a signal comes.
void Run(Simulator* simulator) {
  const auto advance = [simulator] {
    const nb::gil_scoped_release release;
    return simulator->Advance(kEventsAtOnce);
  };
  while (!advance()) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object Simulate(const Records& transfers, const TopologyWords& topology, int64_t row_bytes, int8_t synchronization,
                    bool balance_first, int32_t pieces, double oversubscription, std::vector<double> efficiencies,
                    bool whole_senders, double resolution) {
  const std::vector<Transfer> unpacked = Unpack(transfers);
  Messages messages;
  try {
    messages = simulator::GatherMessages(unpacked, pieces);
  } catch (const std::invalid_argument& refused) {
    return nb::str(refused.what());
  }
  const Fabric fabric{static_cast<Synchronization>(synchronization), balance_first, oversubscription,
                      std::move(efficiencies), whole_senders};
  Simulator simulator(simulator::Schedule(messages, ToTopology(topology), row_bytes, fabric), resolution);
  Run(&simulator);
  std::vector<uint8_t> records;
  int64_t stuck = -1;
  for (size_t i = 0; i < messages.all.size(); ++i) {
    const Message& m = messages.all[i];
    AddRecord(&records, static_cast<int8_t>(m.phase), m.stage, m.src, m.dst, m.rows, simulator.ready()[i],
              simulator.start()[i], simulator.end()[i]);
    if (stuck < 0 && !simulator.is_done(static_cast<int32_t>(i))) stuck = static_cast<int64_t>(i);
  }
  return nb::make_tuple(ToNumpy(std::move(records)), ToNumpy(std::move(messages.of_transfers)),
                        ToNumpy(std::move(messages.last_of_transfers)), stuck);
}

}  // namespace

void RegisterSimulation(nb::module_* module) {
  module->def(
      "simulate", &Simulate, nb::arg("transfers"), nb::arg("topology"), nb::arg("row_bytes"),
      nb::arg("synchronization"), nb::arg("balance_first"), nb::arg("pieces"), nb::arg("oversubscription"),
      nb::arg("efficiencies"), nb::arg("whole_senders"), nb::arg("resolution"),
      "Simulates transfers flow by flow. What messages were and when, as packed records; the first and the last "
      "of each transfer, or -1; and one that has not come, since it waits for itself by way of others, or -1. Or why "
      "transfers are refused.");
}

}  // namespace fastjax::python
