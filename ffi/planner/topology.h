// The two-tier fabric a plan is made for.
#ifndef FASTJAX_PLANNER_TOPOLOGY_H_
#define FASTJAX_PLANNER_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::planner {

// `servers` servers of `devices_per_server` devices each, numbered server-major: device r is local index
// r % devices_per_server of server r / devices_per_server. Rates and latencies are integers because decisions
// are made from integers only: that is what keeps plans bit-identical on every host.
struct Topology {
  int32_t servers = 1;
  int32_t devices_per_server = 1;
  int64_t scale_up_bandwidth = 450'000'000'000;  // bytes/s of one device inside its server
  int64_t scale_out_bandwidth = 50'000'000'000;  // bytes/s of one device's NIC
  int64_t scale_up_latency_ns = 2'000;           // start-up of a step inside a server
  int64_t scale_out_latency_ns = 10'000;         // start-up of one scale-out stage
  int64_t transfer_overhead_ns = 1'000;          // what posting one of several messages takes a device
  int64_t incast_loss_ppm = 500'000;             // docs/design/cost_model.md
  // bytes/s of each device's NIC where they differ; 0 has failed. Empty: all have scale_out_bandwidth.
  std::vector<int64_t> nic_bandwidths = {};

  int32_t devices() const { return servers * devices_per_server; }
  int32_t server_of(int32_t device) const { return device / devices_per_server; }
  int32_t local_of(int32_t device) const { return device % devices_per_server; }
  int32_t device(int32_t server, int32_t local) const { return server * devices_per_server + local; }
  bool equal_nics() const { return nic_bandwidths.empty(); }
  int64_t nic_bandwidth(int32_t device) const { return equal_nics() ? scale_out_bandwidth : nic_bandwidths[device]; }
  int64_t fastest_nic() const;
  // A NIC is never taken to be slower than a millionth of the fastest: its rows would count for too many.
  int64_t slowest_counted_nic() const { return (fastest_nic() >> 20) + 1; }
};

// Returns the number modulo the count; the number is below twice the count.
inline int32_t Wrapped(int32_t number, int32_t count) { return number < count ? number : number - count; }

inline constexpr int64_t kTopologyWords = 8;

// Reads the members in order, nic_bandwidths last: kTopologyWords words, and one for each device where there are more.
// Returns what is wrong with them, or an empty string.
const char* ReadTopology(const int64_t* words, int64_t count, Topology* topology);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TOPOLOGY_H_
