#include "problem.h"

#include <algorithm>
#include <vector>

#include "random_traffic.h"

namespace fastjax::test {
namespace {

using planner::Topology;

constexpr int64_t kFastest = (int64_t{1} << 62) - 1;
constexpr int64_t kBandwidths[] = {450'000'000'000, 50'000'000'000, 12'500'000'000, 1'000'000'007, 1000, 3, 1,
                                   kFastest};
constexpr int64_t kLatencies[] = {0, 0, 1, 2'000, 10'000, 1'000'000, 3'600'000'000'000};
constexpr int64_t kLosses[] = {0, 1, 500'000, 1'000'000};
constexpr int64_t kRowBytes[] = {1, 7, 64, 4096, 1 << 20, 1 << 24, (int64_t{1} << 40) - 1};

struct Shape {
  int32_t servers;
  int32_t devices_per_server;
};

Shape DrawShape(Choices* choices) {
  const auto upto = [&](int64_t most) { return static_cast<int32_t>(1 + choices->Below(most)); };
  const int64_t size = choices->Below(1000);
  if (size < 500) return {upto(4), upto(4)};
  if (size < 820) return {upto(6), upto(5)};
  if (size < 970) return {upto(9), upto(9)};
  if (size < 985) return {upto(5), 16};
  if (size < 998) return {9 + upto(12), upto(4)};
  return {upto(40), upto(8)};
}

// Each NIC runs at its own part of the full rate or not at all; one of each server works.
std::vector<int64_t> DrawNics(const Topology& topology, Choices* choices) {
  const int64_t full = topology.scale_out_bandwidth;
  const int64_t parts[] = {full, full, full / 2, full / 4, full / 3, 1, 0};
  const int64_t failed = choices->Below(60);  // in percent, of all but one NIC of each server
  std::vector<int64_t> nics;
  for (int32_t server = 0; server < topology.servers; ++server) {
    const int64_t sound = choices->Below(topology.devices_per_server);
    for (int32_t local = 0; local < topology.devices_per_server; ++local) {
      const int64_t rate = choices->Percent(failed) ? 0 : choices->Pick(parts);
      nics.push_back(local == sound ? std::max<int64_t>(rate, 1) : rate);
    }
  }
  return nics;
}

Topology DrawTopology(int32_t max_devices, Choices* choices) {
  Topology topology;
  const Shape shape = DrawShape(choices);
  topology.servers = std::min(shape.servers, max_devices);
  topology.devices_per_server = std::min(shape.devices_per_server, max_devices / topology.servers);
  if (choices->Percent(50)) return topology;
  topology.scale_up_bandwidth = choices->Pick(kBandwidths);
  topology.scale_out_bandwidth = choices->Pick(kBandwidths);
  topology.scale_up_latency_ns = choices->Pick(kLatencies);
  topology.scale_out_latency_ns = choices->Pick(kLatencies);
  topology.transfer_overhead_ns = choices->Pick(kLatencies);
  topology.incast_loss_ppm = choices->Pick(kLosses);
  if (choices->Percent(40)) topology.nic_bandwidths = DrawNics(topology, choices);
  return topology;
}

}  // namespace

Problem DrawProblem(planner::Scheduler scheduler, int32_t max_devices, Choices* choices) {
  Problem problem;
  problem.topology = DrawTopology(max_devices, choices);
  problem.scheduler = scheduler;
  problem.row_bytes = choices->Pick(kRowBytes);
  problem.traffic = DrawTraffic(problem.topology, choices);
  problem.before = DrawTraffic(problem.topology, choices);
  return problem;
}

void Print(const Problem& problem, std::ostream* out) {
  constexpr int32_t kPrintedDevices = 24;
  const Topology& topology = problem.topology;
  const int32_t devices = topology.devices();
  *out << "  " << planner::SchedulerNames()[static_cast<size_t>(problem.scheduler)] << ", " << topology.servers << "x"
       << topology.devices_per_server << ", bytes/s " << topology.scale_up_bandwidth << " and "
       << topology.scale_out_bandwidth << ", latencies " << topology.scale_up_latency_ns << " and "
       << topology.scale_out_latency_ns << " ns, overhead " << topology.transfer_overhead_ns << " ns, incast loss "
       << topology.incast_loss_ppm << ", rows of " << problem.row_bytes << " bytes, '" << problem.traffic.name
       << "' after '" << problem.before.name << "'\n";
  if (!topology.equal_nics()) {
    *out << "  NICs:";
    for (const int64_t rate : topology.nic_bandwidths) *out << " " << rate;
    *out << "\n";
  }
  if (devices > kPrintedDevices) return;
  for (int32_t i = 0; i < devices; ++i) {
    *out << "  {";
    for (int32_t j = 0; j < devices; ++j) {
      *out << (j == 0 ? "" : ", ") << problem.traffic.traffic[static_cast<size_t>(i) * devices + j];
    }
    *out << "},\n";
  }
}

}  // namespace fastjax::test
