// The two-tier fabric a plan is made for.
#ifndef FASTJAX_PLANNER_TOPOLOGY_H_
#define FASTJAX_PLANNER_TOPOLOGY_H_

#include <cstdint>

namespace fastjax::planner {

// `servers` servers of `devices_per_server` devices each, numbered server-major: device r is local index
// r % devices_per_server of server r / devices_per_server. Rates and latencies are integers because decisions
// are made from integers only: that is what keeps plans bit-identical on every host.
struct Topology {
  int32_t servers = 1;
  int32_t devices_per_server = 1;
  int64_t scale_up_bandwidth = 450'000'000'000;  // bytes/s of one device inside its server
  int64_t scale_out_bandwidth = 50'000'000'000;  // bytes/s of one device's NIC
  int64_t scale_up_latency_ns = 2'000;           // start-up of one transfer inside a server
  int64_t scale_out_latency_ns = 10'000;         // start-up of one scale-out stage

  int32_t devices() const { return servers * devices_per_server; }
  int32_t server_of(int32_t device) const { return device / devices_per_server; }
  int32_t local_of(int32_t device) const { return device % devices_per_server; }
  int32_t device(int32_t server, int32_t local) const { return server * devices_per_server + local; }
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TOPOLOGY_H_
