#include "problem.h"

#include <algorithm>
#include <vector>

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

// Traffic of the kinds that planners get wrong.
constexpr int64_t kInt32Limit = int64_t{1} << 31;

// Rows that a block may have at most: a planner adds up all of them in int64.
int64_t MaxBlockRows(const Topology& topology) {
  const int64_t devices = topology.devices();
  return (int64_t{1} << 62) / (devices * devices);
}

Matrix Zeros(const Topology& topology) {
  return Fill(topology, [](int32_t, int32_t) { return 0; });
}

int64_t& At(const Topology& topology, Matrix* traffic, int32_t i, int32_t j) {
  return (*traffic)[static_cast<size_t>(i) * topology.devices() + j];
}

// Rows that a device of server s, whichever, sends to one of server d.
void AddToTile(const Topology& topology, int32_t s, int32_t d, int64_t rows, Choices* choices, Matrix* traffic) {
  const auto local = [&] { return static_cast<int32_t>(choices->Below(topology.devices_per_server)); };
  const int32_t i = topology.device(s, local());
  At(topology, traffic, i, topology.device(d, local())) += rows;
}

// Every entry by itself, of any size.
Matrix Entries(const Topology& topology, Choices* choices) {
  return Fill(topology, [&](int32_t, int32_t) -> int64_t {
    const int64_t size = choices->Below(16);
    if (size < 8) return 0;
    if (size < 12) return choices->Below(4);
    if (size < 15) return choices->Below(256);
    return choices->Below(kInt32Limit + 4);
  });
}

// Popular experts heat their devices, whoever sends.
Matrix ExpertPopularity(const Topology& topology, Choices* choices) {
  const std::vector<int32_t> rank = choices->Shuffled(topology.devices());
  const int64_t tokens = 1 + choices->Below(80);
  return Fill(topology, [&](int32_t, int32_t j) { return tokens / (1 + rank[j]) + choices->Below(2); });
}

// What int32 can just number, and with `beyond` what it cannot.
Matrix NearInt32(const Topology& topology, Choices* choices) {
  const bool beyond = choices->Percent(20);
  const int64_t density = 1 + choices->Below(4);
  return Fill(topology, [&](int32_t, int32_t) -> int64_t {
    if (choices->Below(density) != 0) return choices->Below(3);
    if (beyond && choices->Percent(10)) return kInt32Limit + choices->Below(3);
    return choices->Percent(50) ? kInt32Limit - 1 - choices->Below(4) : kInt32Limit / (2 + choices->Below(20));
  });
}

// What int64 can just add up.
Matrix NearInt64(const Topology& topology, Choices* choices) {
  const int64_t density = 1 + choices->Below(4);
  const int64_t most = MaxBlockRows(topology);
  return Fill(topology, [&](int32_t, int32_t) {
    return choices->Below(density) == 0 ? most - choices->Below(1 + most / 1000) : choices->Below(2);
  });
}

Matrix Magnitudes(const Topology& topology, Choices* choices) {
  const int64_t bits = 1 + choices->Below(44);
  return Fill(topology, [&](int32_t, int32_t) { return choices->Below(int64_t{1} << choices->Below(bits)); });
}

Matrix SparseLarge(const Topology& topology, Choices* choices) {
  const int64_t density = 2 + choices->Below(topology.devices());
  return Fill(topology, [&](int32_t, int32_t) { return choices->Below(density) == 0 ? choices->Below(100'000) : 0; });
}

// Few permutations of devices: every stage could be full.
Matrix DevicePermutations(const Topology& topology, Choices* choices) {
  Matrix traffic = Zeros(topology);
  const int64_t count = 1 + choices->Below(4);
  for (int64_t permutation = 0; permutation < count; ++permutation) {
    const std::vector<int32_t> to = choices->Shuffled(topology.devices());
    const int64_t rows = 1 + choices->Below(40);
    for (int32_t i = 0; i < topology.devices(); ++i) At(topology, &traffic, i, to[i]) += rows;
  }
  return traffic;
}

// Server permutations with weights that a rail divides evenly: exact sums, of few or of as many as Birkhoff needs.
Matrix ServerPermutations(const Topology& topology, Choices* choices) {
  Matrix traffic = Zeros(topology);
  const int64_t n = topology.servers;
  const int64_t count = choices->Percent(50) ? 1 + choices->Below(n) : n * n - 2 * n + 2;
  const int64_t heaviest = choices->Percent(50) ? 8 : 3000;
  for (int64_t permutation = 0; permutation < count; ++permutation) {
    const std::vector<int32_t> to = choices->Shuffled(topology.servers);
    const int64_t rows = (1 + choices->Below(heaviest)) * topology.devices_per_server;
    for (int32_t s = 0; s < n; ++s) AddToTile(topology, s, to[s], rows, choices, &traffic);
  }
  return traffic;
}

// One block for each server pair, between different rails: nearly every row is staged at both ends.
Matrix StagedTwice(const Topology& topology, Choices* choices) {
  Matrix traffic = Zeros(topology);
  const int32_t m = topology.devices_per_server;
  const int64_t rows = 1 + choices->Below(300);
  const int32_t from = static_cast<int32_t>(choices->Below(m));
  const int32_t by = m == 1 ? 0 : static_cast<int32_t>(1 + choices->Below(m - 1));
  for (int32_t s = 0; s < topology.servers; ++s) {
    for (int32_t d = 0; d < topology.servers; ++d) {
      const int32_t shift = s + d;
      At(topology, &traffic, topology.device(s, (from + shift) % m), topology.device(d, (from + shift + by) % m)) =
          rows + choices->Below(2);
    }
  }
  return traffic;
}

// Sums of server pairs one off a multiple of the rails, or far below: what does not divide evenly must not add up.
Matrix Remainders(const Topology& topology, Choices* choices) {
  Matrix traffic = Zeros(topology);
  const int64_t m = topology.devices_per_server;
  const int64_t extra = choices->Pick<int64_t>({0, 1, m - 1, m + 1});
  const int64_t most = 1 + choices->Below(6);
  for (int32_t s = 0; s < topology.servers; ++s) {
    for (int32_t d = 0; d < topology.servers; ++d) {
      for (int64_t left = choices->Below(most) * m + extra; left > 0;) {
        const int64_t rows = 1 + choices->Below(left);
        AddToTile(topology, s, d, rows, choices, &traffic);
        left -= rows;
      }
    }
  }
  return traffic;
}

Matrix OneGiant(const Topology& topology, Choices* choices) {
  Matrix traffic = Fill(topology, [&](int32_t, int32_t) { return choices->Below(3); });
  const int64_t block = choices->Below(static_cast<int64_t>(traffic.size()));
  traffic[block] =
      std::min<int64_t>(choices->Pick<int64_t>({100, 4000, 1'000'000'007, 1'000'000'000'039}), MaxBlockRows(topology));
  return traffic;
}

// Only servers before send to those behind: line sums differ as much as they can.
Matrix Triangle(const Topology& topology, Choices* choices) {
  return Fill(topology, [&](int32_t i, int32_t j) {
    return topology.server_of(i) < topology.server_of(j) ? choices->Below(40) : 0;
  });
}

struct Kind {
  const char* name;
  Matrix (*make)(const Topology& topology, Choices* choices);
};

constexpr Kind kKinds[] = {
    {"expert popularity", ExpertPopularity},
    {"near 2^31", NearInt32},
    {"near 2^62", NearInt64},
    {"magnitudes", Magnitudes},
    {"sparse, large", SparseLarge},
    {"device permutations", DevicePermutations},
    {"server permutations", ServerPermutations},
    {"staged twice", StagedTwice},
    {"remainders", Remainders},
    {"one giant", OneGiant},
    {"triangle", Triangle},
};

// Any matrix: one of MakeCases, or of the above.
Case DrawTraffic(const Topology& topology, Choices* choices) {
  static const auto cases = static_cast<int64_t>(MakeCases(Topology(), 0).size());
  switch (choices->Below(3)) {
    case 0:
      return {"entries", Entries(topology, choices)};
    case 1: {
      const uint64_t seed = choices->Seed();  // compilers evaluate arguments in different orders
      return MakeCases(topology, seed, static_cast<int32_t>(choices->Below(cases))).front();
    }
    default: {
      const Kind kind = choices->Pick(kKinds);
      Choices own(choices->Seed());
      return {kind.name, kind.make(topology, &own)};
    }
  }
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
  *out << "  " << planner::NameOf(problem.scheduler) << ", " << topology.servers << "x" << topology.devices_per_server
       << ", bytes/s " << topology.scale_up_bandwidth << " and " << topology.scale_out_bandwidth << ", latencies "
       << topology.scale_up_latency_ns << " and " << topology.scale_out_latency_ns << " ns, overhead "
       << topology.transfer_overhead_ns << " ns, incast loss " << topology.incast_loss_ppm << ", rows of "
       << problem.row_bytes << " bytes, '" << problem.traffic.name << "' after '" << problem.before.name << "'\n";
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
