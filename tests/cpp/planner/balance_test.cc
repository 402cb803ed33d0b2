// Balance of one server pair against a reference that knows only the costs: minimum-cost flow by successive shortest
// paths.
#include "planner/balance.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::Rail;
using planner::RailFiller;
using planner::Segment;

constexpr int64_t kUnreached = std::numeric_limits<int64_t>::max() / 2;

// Source, blocks, rails, sink; an edge and its reverse lie next to each other.
class MinCostFlow {
 public:
  explicit MinCostFlow(int32_t nodes) : nodes_(nodes) {}

  void AddEdge(int32_t from, int32_t to, int64_t capacity, int64_t cost) {
    edges_.push_back({from, to, capacity, cost});
    edges_.push_back({to, from, 0, -cost});
  }

  int64_t Cost(int32_t source, int32_t sink) {
    int64_t cost = 0;
    while (true) {
      std::vector<int64_t> distance(nodes_, kUnreached);
      std::vector<int32_t> reached_by(nodes_, -1);
      distance[source] = 0;
      for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < edges_.size(); ++i) {
          const Edge& edge = edges_[i];
          if (edge.capacity == 0 || distance[edge.from] + edge.cost >= distance[edge.to]) continue;
          distance[edge.to] = distance[edge.from] + edge.cost;
          reached_by[edge.to] = static_cast<int32_t>(i);
          changed = true;
        }
      }
      if (distance[sink] >= kUnreached) return cost;
      int64_t flow = kUnreached;
      for (int32_t node = sink; node != source; node = edges_[reached_by[node]].from) {
        flow = std::min(flow, edges_[reached_by[node]].capacity);
      }
      for (int32_t node = sink; node != source; node = edges_[reached_by[node]].from) {
        edges_[reached_by[node]].capacity -= flow;
        edges_[reached_by[node] ^ 1].capacity += flow;
      }
      cost += flow * distance[sink];
    }
  }

 private:
  struct Edge {
    int32_t from;
    int32_t to;
    int64_t capacity;
    int64_t cost;
  };
  int32_t nodes_;
  std::vector<Edge> edges_;
};

int64_t FewestMoves(int32_t m, const std::vector<int64_t>& tile, const std::vector<int64_t>& quotas) {
  const int32_t blocks = m * m;
  const int32_t source = blocks + m;
  const int32_t sink = source + 1;
  MinCostFlow flow(sink + 1);
  for (int32_t block = 0; block < blocks; ++block) {
    if (tile[block] == 0) continue;
    flow.AddEdge(source, block, tile[block], 0);
    for (int32_t rail = 0; rail < m; ++rail) {
      flow.AddEdge(block, blocks + rail, tile[block], (rail != block / m) + (rail != block % m));
    }
  }
  for (int32_t rail = 0; rail < m; ++rail) flow.AddEdge(blocks + rail, sink, quotas[rail], 0);
  return flow.Cost(source, sink);
}

// 0 needs no balance, 1 is moved twice, 2 is the diagonal, 3 needs no redistribution.
int32_t Section(const Segment& segment, int32_t rail) {
  if (segment.origin == rail) return segment.target == rail ? 2 : 0;
  return segment.target == rail ? 3 : 1;
}

// Where row ranges of a block may lie: its origin's rail first, its target's rail second, others ascending.
int32_t Preference(int32_t rail, int32_t origin, int32_t target) {
  if (rail == origin) return -2;
  return rail == target ? -1 : rail;
}

struct Placed {
  int32_t preference;
  int64_t first_row;
  int64_t rows;
};

void CheckBlocks(const std::vector<int64_t>& tile, std::vector<std::vector<Placed>>* blocks) {
  for (size_t block = 0; block < tile.size(); ++block) {
    std::vector<Placed>& parts = (*blocks)[block];
    std::sort(parts.begin(), parts.end(), [](const Placed& a, const Placed& b) { return a.preference < b.preference; });
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) CHECK_NE(parts[i].preference, parts[i - 1].preference);
      CHECK_EQ(parts[i].first_row, row);
      row += parts[i].rows;
    }
    CHECK_EQ(row, tile[block]);
  }
}

void CheckTile(int32_t m, const std::vector<int64_t>& tile, const std::vector<int64_t>& quotas, RailFiller* balancer) {
  std::vector<Rail> rails(m);
  constexpr int32_t kFirst = 3;  // pools are shared, so lists start anywhere
  std::vector<Segment> pool(kFirst + balancer->max_segments());
  const int32_t end = balancer->Fill(tile.data(), m, quotas.data(), nullptr, rails.data(), pool.data(), kFirst);
  CHECK_LE(end, static_cast<int32_t>(pool.size()));
  std::vector<std::vector<Placed>> blocks(tile.size());
  std::vector<int32_t> as_origin(m);
  std::vector<int32_t> as_target(m);
  int64_t moves = 0;
  int32_t next = kFirst;
  for (int32_t rail = 0; rail < m; ++rail) {
    CHECK_EQ(rails[rail].first, next);
    next = rails[rail].end;
    CHECK_LE(rails[rail].end - rails[rail].first, m * m);
    int64_t position = 0;
    int32_t section = 0;
    for (int32_t i = rails[rail].first; i < rails[rail].end; ++i) {
      const Segment& segment = pool[i];
      CHECK_EQ(segment.position, position);
      CHECK_GT(segment.rows, 0);
      CHECK_GE(Section(segment, rail), section);
      section = Section(segment, rail);
      position += segment.rows;
      moves += segment.rows * ((segment.origin != rail) + (segment.target != rail));
      as_origin[segment.origin] += segment.origin != rail;
      as_target[segment.target] += segment.target != rail;
      blocks[segment.origin * m + segment.target].push_back(
          {Preference(rail, segment.origin, segment.target), segment.first_row, segment.rows});
    }
    CHECK_EQ(position, quotas[rail]);
  }
  CHECK_EQ(next, end);
  CheckBlocks(tile, &blocks);
  CHECK_EQ(moves, FewestMoves(m, tile, quotas));
  // What the size of stage tables relies on.
  const int32_t pieces = std::min(m * (m - 1), std::max(3 * m - 3, 0));
  CHECK_LE(*std::max_element(as_origin.begin(), as_origin.end()), pieces);
  CHECK_LE(*std::max_element(as_target.begin(), as_target.end()), pieces);
}

std::vector<int64_t> EvenQuotas(int32_t m, const std::vector<int64_t>& tile, int32_t first_extra) {
  int64_t sum = 0;
  for (int64_t rows : tile) sum += rows;
  std::vector<int64_t> quotas(m, sum / m);
  for (int64_t i = 0; i < sum % m; ++i) ++quotas[(first_extra + i) % m];
  return quotas;
}

// Every 2 x 2 tile with entries up to 4, and every 3 x 3 tile with entries up to 2.
TEST(EveryTile) {
  for (const auto& [m, limit] : {std::pair(2, 5), std::pair(3, 3)}) {
    const Context context("every tile of " + std::to_string(m) + " devices");
    const auto balancer = planner::MakeBalancer(m);
    int64_t tiles = 1;
    for (int32_t block = 0; block < m * m; ++block) tiles *= limit;
    for (int64_t code = 0; code < tiles; ++code) {
      std::vector<int64_t> tile(m * m);
      int64_t digits = code;
      for (int64_t& rows : tile) {
        rows = digits % limit;
        digits /= limit;
      }
      CheckTile(m, tile, EvenQuotas(m, tile, static_cast<int32_t>(code % m)), balancer.get());
    }
  }
}

TEST(RandomTiles) {
  std::mt19937_64 random(11);
  for (const int32_t m : {1, 2, 3, 4, 5, 8, 11}) {
    const Context context("random tiles of " + std::to_string(m) + " devices");
    const auto balancer = planner::MakeBalancer(m);
    for (int32_t round = 0; round < (m < 6 ? 1500 : 150); ++round) {
      std::vector<int64_t> tile(m * m);
      const uint64_t density = 1 + random() % 6;
      const uint64_t limit = 1 + random() % 200;
      for (int64_t& rows : tile) {
        if (random() % density == 0) rows = static_cast<int64_t>(random() % limit);
        if (random() % 16 == 0) rows *= 20;
      }
      CheckTile(m, tile, EvenQuotas(m, tile, static_cast<int32_t>(random() % m)), balancer.get());
    }
  }
}

// Numbers of rows that no 32 bits hold, and more rails than bits in a word.
TEST(LargeTiles) {
  std::mt19937_64 random(13);
  for (const auto& [m, blocks, rounds] : {std::tuple(8, 64, 100), std::tuple(64, 60, 3), std::tuple(70, 60, 3)}) {
    const Context context("large tiles of " + std::to_string(m) + " devices");
    const auto balancer = planner::MakeBalancer(m);
    for (int32_t round = 0; round < rounds; ++round) {
      std::vector<int64_t> tile(m * m);
      for (int32_t block = 0; block < blocks; ++block) {
        const uint64_t limit = uint64_t{1} << (random() % 50);
        tile[random() % tile.size()] = static_cast<int64_t>(random() % limit);
      }
      CheckTile(m, tile, EvenQuotas(m, tile, round % m), balancer.get());
    }
  }
}

}  // namespace
}  // namespace fastjax::test
