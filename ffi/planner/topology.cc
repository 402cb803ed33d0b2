#include "planner/topology.h"

#include <algorithm>

namespace fastjax::planner {
namespace {

constexpr int64_t kMaxDevices = (int64_t{1} << 15) - 1;  // servers are int16, pairs of them int32
constexpr int64_t kMaxNanoseconds = int64_t{3600} * 1'000'000'000;

bool Within(int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; }

const char* CheckNics(const Topology& topology) {
  if (topology.equal_nics() || topology.servers == 1) return "";
  const auto* nic = topology.nic_bandwidths.data();
  for (int32_t server = 0; server < topology.servers; ++server, nic += topology.devices_per_server) {
    if (std::all_of(nic, nic + topology.devices_per_server, [](int64_t rate) { return rate == 0; })) {
      return "a server has no working NIC";
    }
  }
  return "";
}

}  // namespace

int64_t Topology::fastest_nic() const {
  return equal_nics() ? scale_out_bandwidth : *std::max_element(nic_bandwidths.begin(), nic_bandwidths.end());
}

const char* ReadTopology(const int64_t* words, int64_t count, Topology* topology) {
  if (count < kTopologyWords) return "a topology has too few words";
  if (!Within(words[0], 1, kMaxDevices) || !Within(words[1], 1, kMaxDevices) || words[0] * words[1] > kMaxDevices) {
    return "a topology has an impossible number of devices";
  }
  *topology = {static_cast<int32_t>(words[0]),
               static_cast<int32_t>(words[1]),
               words[2],
               words[3],
               words[4],
               words[5],
               words[6],
               words[7]};
  if (words[2] < 1 || words[3] < 1) return "a bandwidth is not positive";
  for (int i = 4; i < 7; ++i) {
    if (!Within(words[i], 0, kMaxNanoseconds)) return "a latency is out of range";
  }
  if (!Within(words[7], 0, 1'000'000)) return "incast_loss is out of range";
  topology->nic_bandwidths.assign(words + kTopologyWords, words + count);
  if (topology->equal_nics()) return "";
  if (count != kTopologyWords + topology->devices()) return "nic_bandwidths does not have an entry for each device";
  if (std::any_of(words + kTopologyWords, words + count, [](int64_t rate) { return rate < 0; })) {
    return "a NIC's bandwidth is negative";
  }
  return CheckNics(*topology);
}

}  // namespace fastjax::planner
