#include "planner/lower_bound.h"

#include <algorithm>
#include <vector>

namespace fastjax::planner {
namespace {

// Rows that leave or enter, of devices or servers.
struct Ends {
  explicit Ends(int32_t count) : out(count), in(count) {}
  double busiest(int32_t i) const { return static_cast<double>(std::max(out[i], in[i])); }

  std::vector<int64_t> out;
  std::vector<int64_t> in;
};

}  // namespace

double LowerBoundSeconds(const Topology& topology, int64_t row_bytes, const int64_t* traffic) {
  const int32_t devices = topology.devices();
  Ends by_device(devices);
  Ends by_server(topology.servers);
  for (int32_t src = 0; src < devices; ++src) {
    const int32_t source = topology.server_of(src);
    for (int32_t dst = 0; dst < devices; ++dst) {
      const int64_t rows = traffic[static_cast<int64_t>(src) * devices + dst];
      if (src == dst || rows == 0) continue;
      by_device.out[src] += rows;
      by_device.in[dst] += rows;
      const int32_t target = topology.server_of(dst);
      if (source == target) continue;
      by_server.out[source] += rows;
      by_server.in[target] += rows;
    }
  }
  double rows_per_rate = 0;
  for (int32_t server = 0; server < topology.servers; ++server) {
    double nics = 0;
    for (int32_t local = 0; local < topology.devices_per_server; ++local) {
      const int32_t device = topology.device(server, local);
      const auto nic = static_cast<double>(topology.nic_bandwidth(device));
      nics += nic;
      const double links = static_cast<double>(topology.scale_up_bandwidth) + nic;
      rows_per_rate = std::max(rows_per_rate, by_device.busiest(device) / links);
    }
    if (by_server.busiest(server) > 0) rows_per_rate = std::max(rows_per_rate, by_server.busiest(server) / nics);
  }
  return static_cast<double>(row_bytes) * rows_per_rate;
}

}  // namespace fastjax::planner
