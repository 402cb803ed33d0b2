// What server pairs send and how much of it moves inside their servers, against the same from definitions, one device
// at a time.
#include "planner/tiles.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/balance.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::TileLoad;
using planner::Tiles;
using planner::Topology;

// Rows between two servers, as their local devices see them.
struct Sums {
  std::vector<int64_t> leaving;
  std::vector<int64_t> entering;
  std::vector<int64_t> straight;
  int64_t all = 0;
};

Sums SumsOf(const Topology& topology, const Matrix& traffic, int32_t source, int32_t target) {
  const int32_t m = topology.devices_per_server;
  Sums sums = {std::vector<int64_t>(m), std::vector<int64_t>(m), std::vector<int64_t>(m)};
  for (int32_t i = 0; i < m; ++i) {
    for (int32_t j = 0; j < m; ++j) {
      const int64_t rows =
          traffic[static_cast<size_t>(topology.device(source, i)) * topology.devices() + topology.device(target, j)];
      sums.leaving[i] += rows;
      sums.entering[j] += rows;
      sums.straight[i] += i == j ? rows : 0;
      sums.all += rows;
    }
  }
  return sums;
}

// Rails keep their own rows as far as they can, and are filled up with rows that are on their way to them.
TileLoad LoadOf(const Sums& sums, const std::vector<int64_t>& quotas) {
  TileLoad load;
  for (size_t rail = 0; rail < quotas.size(); ++rail) {
    const int64_t kept = std::min(sums.leaving[rail], quotas[rail]);
    const int64_t given = sums.leaving[rail] - kept;
    const int64_t taken = quotas[rail] - kept;
    const int64_t arrived =
        std::min({std::min(sums.straight[rail], quotas[rail]) + taken, sums.entering[rail], quotas[rail]});
    const int64_t passed_on = quotas[rail] - arrived;
    load.balance.rows = std::max({load.balance.rows, given, taken});
    load.balance.units = std::max(load.balance.units, taken);
    load.redistribute.rows = std::max({load.redistribute.rows, sums.entering[rail] - arrived, passed_on});
    load.redistribute.units = std::max(load.redistribute.units, passed_on);
  }
  return load;
}

void CheckPair(const Topology& topology, const Matrix& traffic, int32_t source, int32_t target, const Tiles& tiles) {
  const int32_t m = topology.devices_per_server;
  const int32_t pair = tiles.PairOf(source, target);
  const Sums sums = SumsOf(topology, traffic, source, target);
  std::vector<int64_t> quotas(m, sums.all / m);
  for (int64_t i = 0; i < sums.all % m; ++i) ++quotas[(source + target + i) % m];
  CHECK_EQ(tiles.sum(pair), sums.all);
  CHECK_EQ(tiles.units()[pair], *std::max_element(quotas.begin(), quotas.end()));
  const TileLoad wanted = LoadOf(sums, quotas);
  const TileLoad& load = tiles.load(pair);
  CHECK_EQ(load.balance.rows, wanted.balance.rows);
  CHECK_EQ(load.balance.units, wanted.balance.units);
  CHECK_EQ(load.redistribute.rows, wanted.redistribute.rows);
  CHECK_EQ(load.redistribute.units, wanted.redistribute.units);
}

// Sums that fit in 32 bits, sums that do not, and some of each.
TEST(SumsAndLoads) {
  std::mt19937_64 random(3);
  for (const int32_t m : {1, 2, 5, 8}) {
    const Topology topology = MakeTopology(4, m);
    Tiles tiles(topology, planner::MakeBalancer(m));
    for (const int bits : {3, 12, 26, 28, 40}) {
      const Context context(std::to_string(m) + " devices, rows of " + std::to_string(bits) + " bits");
      for (int32_t round = 0; round < 50; ++round) {
        const Matrix traffic = Fill(topology, [&](int32_t, int32_t) {
          const uint64_t limit = uint64_t{1} << (random() % (bits + 1));
          return static_cast<int64_t>(random() % limit);
        });
        tiles.Plan(traffic.data());
        for (int32_t pair = 0; pair < topology.servers * topology.servers; ++pair) {
          const int32_t source = pair / topology.servers;
          const int32_t target = pair % topology.servers;
          if (source != target) CheckPair(topology, traffic, source, target, tiles);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastjax::test
