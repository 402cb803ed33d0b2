// Microseconds from a traffic matrix to one device's stage table, with a warm planner and a fresh matrix every time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"

namespace {

using fastjax::planner::Phase;
using fastjax::planner::Planner;
using fastjax::planner::Scheduler;
using fastjax::planner::Topology;
using fastjax::planner::Transfer;

constexpr int kMatrices = 16;
constexpr double kMeanRows = 4096;

// Rows of device pairs follow a Zipf law with ranks drawn at random; exponent 0 is the same for all pairs but for a
// jitter of a tenth, without which every stage would be the same.
std::vector<int64_t> MakeTraffic(int32_t devices, double exponent, std::mt19937_64* random) {
  const size_t pairs = static_cast<size_t>(devices) * devices;
  std::vector<double> weights(pairs);
  double sum = 0;
  for (size_t rank = 0; rank < pairs; ++rank) {
    const double jitter = 0.9 + 0.2 * static_cast<double>((*random)() % 1024) / 1024;
    weights[rank] = exponent > 0 ? std::pow(static_cast<double>(rank + 1), -exponent) : jitter;
    sum += weights[rank];
  }
  std::shuffle(weights.begin(), weights.end(), *random);
  std::vector<int64_t> traffic(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    traffic[i] = std::llround(weights[i] / sum * kMeanRows * static_cast<double>(pairs));
  }
  return traffic;
}

// Rows of the busiest NIC summed over stages, and what no schedule can go below.
struct Length {
  double stages;
  double bound;
};

Length Measure(Planner* planner) {
  const Topology& topology = planner->topology();
  const int32_t devices = topology.devices();
  std::vector<Transfer> transfers;
  planner->AppendTransfers(&transfers);
  std::vector<int64_t> nic(static_cast<size_t>(planner->num_stages()) * devices);
  std::vector<int64_t> leaving(topology.servers);
  std::vector<int64_t> entering(topology.servers);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    nic[static_cast<size_t>(transfer.stage) * devices + transfer.src] += transfer.rows;
    leaving[topology.server_of(transfer.src)] += transfer.rows;
    entering[topology.server_of(transfer.dst)] += transfer.rows;
  }
  Length length = {0, 0};
  for (int32_t stage = 0; stage < planner->num_stages(); ++stage) {
    const auto first = nic.begin() + static_cast<int64_t>(stage) * devices;
    length.stages += static_cast<double>(*std::max_element(first, first + devices));
  }
  for (int32_t server = 0; server < topology.servers; ++server) {
    const double rows = static_cast<double>(std::max(leaving[server], entering[server]));
    length.bound = std::max(length.bound, rows / topology.devices_per_server);
  }
  return length;
}

void Run(int32_t servers, double exponent, int64_t row_bytes) {
  Topology topology;
  topology.servers = servers;
  topology.devices_per_server = 8;
  std::mt19937_64 random(servers);
  std::vector<std::vector<int64_t>> ring;
  for (int i = 0; i < kMatrices; ++i) ring.push_back(MakeTraffic(topology.devices(), exponent, &random));

  Planner planner(topology, Scheduler::kFast, row_bytes);
  std::vector<int32_t> words(fastjax::planner::TableWords(topology, planner.scheduler()));
  const int iterations = servers <= 8 ? 4000 : servers <= 20 ? 800 : 200;
  std::vector<double> microseconds;
  for (int i = -kMatrices; i < iterations; ++i) {
    const int32_t device = (i + kMatrices) % topology.devices();
    const auto start = std::chrono::steady_clock::now();
    planner.Plan(ring[(i + kMatrices) % kMatrices].data());
    if (!WriteTable(&planner, device, words.data())) std::abort();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (i >= 0) microseconds.push_back(time.count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  double stages = 0;
  double ratio = 0;
  double predicted = 0;
  for (const auto& traffic : ring) {
    planner.Plan(traffic.data());
    const Length length = Measure(&planner);
    stages += planner.num_stages();
    ratio += length.stages / length.bound;
    predicted += planner.PredictedTime() / planner.LowerBound();
  }
  std::printf("%7d  %-8s  %9.1f  %9.1f  %9.1f  %7.1f  %12.6f  %15.3f  %11.1f\n", topology.devices(),
              exponent > 0 ? "zipf 0.8" : "uniform", microseconds.front(), microseconds[microseconds.size() / 2],
              microseconds.back(), stages / kMatrices, ratio / kMatrices, predicted / kMatrices,
              static_cast<double>(words.size()) * 4 / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t row_bytes = argc > 1 ? std::atoll(argv[1]) : 4096;
  std::printf("plan and table of one device, fast, 8 devices a server, %lld bytes a row; means over %d matrices\n",
              static_cast<long long>(row_bytes), kMatrices);
  std::printf("devices  traffic      min us     med us     max us   stages  length/bound  predicted/bound");
  std::printf("  table KiB\n");
  for (const double exponent : {0.8, 0.0}) {
    for (const int32_t servers : {2, 4, 8, 12, 20, 40}) Run(servers, exponent, row_bytes);
  }
  return 0;
}
