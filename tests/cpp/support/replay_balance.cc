#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/check.h"
#include "support/replay.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Topology;
using planner::Transfer;

__extension__ using Wide = __int128;

// What one server pair sends, in all and on each rail.
struct Pair {
  int64_t rows = 0;
  std::vector<int64_t> carried;
};

std::vector<Pair> SumPairs(const Topology& topology, const Matrix& traffic) {
  const int32_t n = topology.servers;
  const int32_t devices = topology.devices();
  std::vector<Pair> pairs(static_cast<size_t>(n) * n);
  for (Pair& pair : pairs) pair.carried.resize(topology.devices_per_server);
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      if (topology.server_of(i) == topology.server_of(j)) continue;
      pairs[topology.server_of(i) * n + topology.server_of(j)].rows += traffic[static_cast<size_t>(i) * devices + j];
    }
  }
  return pairs;
}

// Bytes/s of each rail from server s to server d: of the slower of its two NICs.
std::vector<int64_t> RailRates(const Topology& topology, int32_t s, int32_t d) {
  std::vector<int64_t> rates;
  for (int32_t rail = 0; rail < topology.devices_per_server; ++rail) {
    rates.push_back(
        std::min(topology.nic_bandwidth(topology.device(s, rail)), topology.nic_bandwidth(topology.device(d, rail))));
  }
  return rates;
}

int64_t FastestNic(const Topology& topology, int32_t server) {
  int64_t fastest = 0;
  for (int32_t local = 0; local < topology.devices_per_server; ++local) {
    fastest = std::max(fastest, topology.nic_bandwidth(topology.device(server, local)));
  }
  return fastest;
}

bool AnyRail(const std::vector<int64_t>& rates) {
  return std::any_of(rates.begin(), rates.end(), [](int64_t rate) { return rate > 0; });
}

void CheckShares(const Pair& pair, const std::vector<int64_t>& rates) {
  Wide sum = 0;
  for (const int64_t rate : rates) sum += rate;
  const bool equal = std::count(rates.begin(), rates.end(), rates[0]) == static_cast<int64_t>(rates.size());
  for (size_t rail = 0; rail < rates.size(); ++rail) {
    // Rates below 2^62 and fewer rows than 2^62: the product fits.
    const Wide share = static_cast<Wide>(pair.rows) * rates[rail];
    const auto down = static_cast<int64_t>(share / sum);
    const int64_t up = down + (share % sum != 0);
    const int64_t slack = equal || rates[rail] == 0 ? 0 : 1;
    CHECK_GE(pair.carried[rail], std::min(down, up - slack));
    CHECK_LE(pair.carried[rail], std::max(up, down + slack));
  }
}

}  // namespace

void CheckRails(const Topology& topology, const std::vector<Transfer>& transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    const int32_t source = topology.server_of(transfer.src);
    const int32_t target = topology.server_of(transfer.dst);
    const std::vector<int64_t> rates = RailRates(topology, source, target);
    if (AnyRail(rates)) {
      CHECK_EQ(topology.local_of(transfer.src), topology.local_of(transfer.dst));
      CHECK_GT(rates[topology.local_of(transfer.src)], 0);
    } else {
      CHECK_EQ(topology.nic_bandwidth(transfer.src), FastestNic(topology, source));
      CHECK_EQ(topology.nic_bandwidth(transfer.dst), FastestNic(topology, target));
    }
  }
}

void CheckBalance(const Topology& topology, const Matrix& traffic, const std::vector<Transfer>& transfers) {
  CheckRails(topology, transfers);
  const int32_t n = topology.servers;
  std::vector<Pair> pairs = SumPairs(topology, traffic);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    Pair& pair = pairs[topology.server_of(transfer.src) * n + topology.server_of(transfer.dst)];
    pair.carried[topology.local_of(transfer.src)] += transfer.rows;
  }
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      const std::vector<int64_t> rates = RailRates(topology, s, d);
      if (s != d && AnyRail(rates)) CheckShares(pairs[s * n + d], rates);
    }
  }
}

}  // namespace fastjax::test
