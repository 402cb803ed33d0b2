#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/network/network_backend.h"
#include "backends/registry.h"
#include "python/parts.h"
#include "rendezvous/rendezvous.h"
#include "runtime/job_network.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

void Check(const std::string& wrong) {
  if (!wrong.empty()) throw std::runtime_error(wrong);
}

nb::bytes Open(int32_t process, int32_t processes, const nb::bytes& secret, std::string library,
               std::vector<std::string> nics, std::string transports) {
  TransportOptions options;
  options.process = process;
  options.processes = processes;
  if (secret.size() != options.secret.size()) throw std::invalid_argument("the secret must have 16 bytes");
  std::memcpy(options.secret.data(), secret.c_str(), secret.size());
  options.library = std::move(library);
  options.nics = std::move(nics);
  options.transports = std::move(transports);
  std::string addresses;
  {
    const nb::gil_scoped_release release;
    Check(OpenTheTransport(network::OpenTransport, options, &addresses));
  }
  return nb::bytes(addresses.data(), addresses.size());
}

std::shared_ptr<JobTransport> OpenTransport() {
  auto transport = TheTransport();
  Check(transport == nullptr ? "fastjax's network is not open in this process" : "");
  return transport;
}

void AddPeer(int32_t process, const nb::bytes& addresses) {
  Check(OpenTransport()->AddPeer(process, {addresses.c_str(), addresses.size()}));
}

void PeerLost(int32_t process, const std::string& why) { OpenTransport()->PeerLost(process, why); }

bool Close(double seconds) {
  constexpr double kLongest = 86400;
  const double limit = std::isnan(seconds) ? 0 : std::clamp(seconds, 0.0, kLongest);
  const nb::gil_scoped_release release;
  return CloseTheTransport(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(limit)));
}

nb::dict State() {
  TransportState state;
  const auto transport = TheTransport();
  nb::dict dict;
  dict["open"] = transport != nullptr;
  if (transport == nullptr) return dict;
  {
    const nb::gil_scoped_release release;
    state = transport->State();
  }
  nb::list nics;
  for (const NicWorkerState& nic_worker : state.nic_workers)
    nics.append(nb::make_tuple(nic_worker.nic, nic_worker.transports));
  dict["library"] = state.library;
  dict["version"] = state.version;
  dict["nics"] = nics;
  dict["peers"] = state.peers;
  dict["messages_sent"] = state.messages_sent;
  dict["messages_received"] = state.messages_received;
  dict["bytes_sent"] = state.bytes_sent;
  dict["bytes_received"] = state.bytes_received;
  dict["refused"] = state.refused;
  return dict;
}

}  // namespace

void RegisterNetwork(nb::module_* module) {
  module->def("network_open", &Open, nb::arg("process"), nb::arg("processes"), nb::arg("secret"), nb::arg("library"),
              nb::arg("nics"), nb::arg("transports"),
              "Opens this process's network over UCX; returns the addresses that other processes need.");
  module->def("network_add_peer", &AddPeer, nb::arg("process"), nb::arg("addresses"),
              "Another process has joined, or joined again, with these addresses.");
  module->def("network_peer_lost", &PeerLost, nb::arg("process"), nb::arg("why"), "Another process is gone for good.");
  module->def("network_close", &Close, nb::arg("seconds"),
              "Sends what is in flight, for so long at most, and closes; False if that had to be given up.");
  module->def(
      "network_unfinished", [] { return Unfinished().load(); }, "How many devices of this process are at an exchange.");
  module->def("network_count_launches_from", &CountLaunchesFrom, nb::arg("module"), nb::arg("start"),
              "Says from where XLA counts the launches of the executable of a module that was made last.");
  module->def("network_state", &State,
              "What is open and what has passed: open, library, version, nics, peers, messages, bytes, refused.");
}

}  // namespace fastjax::python
