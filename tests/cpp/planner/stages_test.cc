// Stages: cut so that work inside servers hides. That they carry everything is checked by random_plans.
#include "planner/stages.h"

#include <cstdint>

#include "planner/balance.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::MatchingBuilder;
using planner::Pricing;
using planner::StageBuilder;
using planner::Tiles;
using planner::Topology;

struct Built {
  Built(const Topology& topology, int64_t row_bytes, const Matrix& traffic)
      : pricing(topology, row_bytes),
        tiles(topology, planner::MakeBalancer(topology.devices_per_server)),
        matchings(topology.servers),
        stages(tiles, pricing) {
    tiles.Plan(traffic.data());
    matchings.Build(tiles.units(), pricing.startup_rows());
    stages.Build(matchings.matchings());
  }

  int64_t length() const {
    int64_t sum = 0;
    for (int32_t stage = 0; stage < stages.count(); ++stage) sum += stages.length(stage);
    return sum;
  }

  Pricing pricing;
  Tiles tiles;
  MatchingBuilder matchings;
  StageBuilder stages;
};

Topology Instant(int32_t servers) {
  Topology topology = MakeTopology(servers, 8);
  topology.scale_up_latency_ns = topology.scale_out_latency_ns = 0;
  return topology;
}

Matrix SingleFlow(const Topology& topology, int64_t rows) {
  return Fill(topology, [&](int32_t i, int32_t j) { return i == 0 && j == topology.devices() - 1 ? rows : 0; });
}

// One flow is one matching, and all of it passes through its server's other devices: the first piece is short, and
// pieces grow no faster than what they hide.
TEST(Ramp) {
  const Topology topology = Instant(2);
  Built built(topology, 4096, SingleFlow(topology, 1 << 20));
  CHECK_EQ(built.matchings.matchings().count(), 1);
  const StageBuilder& stages = built.stages;
  CHECK_GT(stages.count(), 16);
  const int64_t total = built.length();
  CHECK_LE(stages.length(0) * 128, total);
  CHECK_LE(stages.length(stages.count() - 1) * 128, total);
  for (int32_t stage = 0; stage + 1 < stages.count() / 2; ++stage) {
    CHECK_LE(stages.length(stage + 1) * 7, stages.length(stage) * 9 + 9 + 7);
    const int32_t back = stages.count() - 1 - stage;
    CHECK_LE(stages.length(back - 1) * 7, stages.length(back) * 9 + 9 + 7);
  }
}

TEST(Uncut) {
  // Less than a start-up: cutting would cost more than it hides.
  Topology topology = MakeTopology(2, 8);
  CHECK_EQ(Built(topology, 1024, SingleFlow(topology, 800)).stages.count(), 1);
  // Nothing to hide: one device in each server, or every row on its own rail already.
  topology = Instant(2);
  const Matrix on_rails =
      Fill(topology, [&](int32_t i, int32_t j) { return topology.local_of(i) == topology.local_of(j) ? 10'000 : 0; });
  CHECK_EQ(Built(topology, 4096, on_rails).stages.count(), 1);
  topology.devices_per_server = 1;
  const Matrix pair = {0, 1'000'000, 1'000'000, 0};
  CHECK_EQ(Built(topology, 4096, pair).stages.count(), 1);
}

// Where servers are slower inside than between, pieces are equal instead of shrinking to nothing.
TEST(SlowInside) {
  Topology topology = Instant(2);
  topology.scale_up_bandwidth = topology.scale_out_bandwidth;
  Built built(topology, 4096, SingleFlow(topology, 1 << 20));
  for (int32_t stage = 1; stage + 1 < built.stages.count(); ++stage) {
    CHECK_GE(built.stages.length(stage) * 40, built.length());
  }
}

}  // namespace
}  // namespace fastjax::test
