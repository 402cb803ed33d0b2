#include "length.h"

#include <algorithm>
#include <cstddef>

namespace fastjax::bench {
namespace {

using planner::Phase;
using planner::Planner;
using planner::Topology;
using planner::Transfer;

constexpr int32_t kAllTransfersDevices = 320;

int64_t Length(const Topology& topology, Planner* plan) {
  const int32_t devices = topology.devices();
  std::vector<Transfer> transfers;
  plan->AppendTransfers(&transfers);
  // What each NIC sends, and behind it what each receives.
  std::vector<int64_t> nics(static_cast<size_t>(plan->num_stages()) * 2 * devices);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    int64_t* stage = &nics[static_cast<size_t>(transfer.stage) * 2 * devices];
    stage[transfer.src] += transfer.rows;
    stage[devices + transfer.dst] += transfer.rows;
  }
  int64_t length = 0;
  for (auto first = nics.begin(); first != nics.end(); first += 2 * static_cast<int64_t>(devices)) {
    length += *std::max_element(first, first + 2 * static_cast<int64_t>(devices));
  }
  return length;
}

}  // namespace

double RailBound(const Topology& topology, const std::vector<int64_t>& traffic) {
  std::vector<int64_t> leaving(topology.servers);
  std::vector<int64_t> entering(topology.servers);
  size_t entry = 0;
  for (int32_t i = 0; i < topology.devices(); ++i) {
    for (int32_t j = 0; j < topology.devices(); ++j, ++entry) {
      if (topology.server_of(i) == topology.server_of(j)) continue;
      leaving[topology.server_of(i)] += traffic[entry];
      entering[topology.server_of(j)] += traffic[entry];
    }
  }
  const int64_t rows =
      std::max(*std::max_element(leaving.begin(), leaving.end()), *std::max_element(entering.begin(), entering.end()));
  return static_cast<double>(rows) / topology.devices_per_server;
}

std::optional<double> LengthByBound(const std::vector<int64_t>& traffic, Planner* plan) {
  const Topology& topology = plan->topology();
  if (topology.devices() > kAllTransfersDevices) return std::nullopt;
  return static_cast<double>(Length(topology, plan)) / RailBound(topology, traffic);
}

}  // namespace fastjax::bench
