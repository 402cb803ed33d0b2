// Stages of server matrices: everything is carried, one to one, in no more time than the busiest server needs.
#include "planner/stages.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace fastjax::test {
namespace {

using planner::StageBuilder;
using planner::Topology;

using Matrix = std::vector<int64_t>;

int64_t BusiestLine(int32_t n, const Matrix& rows) {
  int64_t busiest = 0;
  for (int32_t a = 0; a < n; ++a) {
    int64_t leaving = 0;
    int64_t entering = 0;
    for (int32_t b = 0; b < n; ++b) {
      leaving += rows[static_cast<size_t>(a) * n + b];
      entering += rows[static_cast<size_t>(b) * n + a];
    }
    busiest = std::max({busiest, leaving, entering});
  }
  return busiest;
}

void CheckStages(int32_t n, const Matrix& rows, int64_t row_bytes, StageBuilder* stages) {
  Topology topology;
  topology.servers = n;
  topology.devices_per_server = 8;
  stages->Build(rows.data(), topology, row_bytes);
  Matrix left = rows;
  int64_t length = 0;
  for (int32_t stage = 0; stage < stages->count(); ++stage) {
    CHECK_GT(stages->length(stage), 0);
    bool carries = false;
    for (int32_t s = 0; s < n; ++s) {
      const int32_t d = stages->to(stage, s);
      const int32_t from = stages->from(stage, s);
      if (from != StageBuilder::kIdle) CHECK_EQ(stages->to(stage, from), s);
      if (d == StageBuilder::kIdle) continue;
      carries = true;
      CHECK_NE(d, s);
      CHECK_EQ(stages->from(stage, d), s);
      int64_t& pair = left[static_cast<size_t>(s) * n + d];
      CHECK_GT(pair, 0);
      pair = std::max<int64_t>(pair - stages->length(stage), 0);
    }
    CHECK(carries);
    length += stages->length(stage);
  }
  CHECK_EQ(*std::max_element(left.begin(), left.end()), 0);
  CHECK_LE(stages->count(), planner::MaxStages(n));
  const int64_t busiest = BusiestLine(n, rows);
  CHECK_EQ(stages->total_rows(), busiest);
  if (planner::MaxMatchings(n) == int64_t{n} * n - 2 * n + 2) CHECK_LE(length, busiest);
  CHECK_LE(length, busiest + busiest / 20 + 2 * n);
}

Matrix Random(int32_t n, uint64_t limit, uint64_t density, std::mt19937_64* random) {
  Matrix rows(static_cast<size_t>(n) * n);
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      if (s != d && (*random)() % density == 0) rows[static_cast<size_t>(s) * n + d] = (*random)() % limit;
    }
  }
  return rows;
}

void TestRandom() {
  std::mt19937_64 random(7);
  for (const int32_t n : {2, 3, 4, 5, 8, 9, 10, 16, 40, 63, 64, 65, 130}) {
    const Context context(std::to_string(n) + " servers");
    StageBuilder stages(n);
    for (int32_t round = 0; round < (n <= 16 ? 200 : 6); ++round) {
      const uint64_t limit = uint64_t{1} << (1 + random() % 50);
      const int64_t row_bytes = int64_t{1} << (random() % 20);
      CheckStages(n, Random(n, limit, 1 + random() % 6, &random), row_bytes, &stages);
    }
  }
}

// Entries of all sizes, which take more matchings than the limit: the rest goes out in shifted pairs and costs little.
void TestTooManyMatchings() {
  std::mt19937_64 random(3);
  for (const int32_t n : {12, 20}) {
    const Context context(std::to_string(n) + " servers, large random entries");
    StageBuilder stages(n);
    int64_t most = 0;
    for (int32_t round = 0; round < 20; ++round) {
      const Matrix rows = Random(n, 1'000'000'000, 1, &random);
      CheckStages(n, rows, 1, &stages);
      int64_t length = 0;
      for (int32_t stage = 0; stage < stages.count(); ++stage) length += stages.length(stage);
      CHECK_LE(length, BusiestLine(n, rows) + BusiestLine(n, rows) / 100'000);
      most = std::max<int64_t>(most, stages.count());
    }
    CHECK_GT(most, planner::MaxMatchings(n));  // otherwise this tests nothing
  }
}

// The most servers anyone asked for: one hot server, a ring, and a permutation.
void TestManyServers() {
  constexpr int32_t kServers = 1024;
  const Context context("1024 servers");
  StageBuilder stages(kServers);
  Matrix rows(static_cast<size_t>(kServers) * kServers);
  for (int32_t s = 0; s < kServers; ++s) {
    rows[static_cast<size_t>(s) * kServers + (s + 1) % kServers] = 100;
    rows[static_cast<size_t>(s) * kServers + (s * 5 + 3) % kServers] = s % 4 == 0 ? 0 : 7;
    rows[static_cast<size_t>(s) * kServers + s] = 0;
  }
  CheckStages(kServers, rows, 1, &stages);
}

void TestChunkRows() {
  Topology topology;
  topology.servers = 2;
  topology.devices_per_server = 8;
  const auto chunk_rows = [&](int64_t row_bytes, int64_t total) {
    return planner::ChunkRows(topology, row_bytes, total);
  };
  CHECK_EQ(chunk_rows(1024, 0), 1);
  CHECK_EQ(chunk_rows(1024, 100), 100);  // less than a start-up: not cut
  CHECK_LT(chunk_rows(1024, 1 << 20), (1 << 20) / 8);
  CHECK_GE(chunk_rows(1, int64_t{1} << 60), (int64_t{1} << 60) / planner::kMaxExtraStages);
  topology.devices_per_server = 1;
  CHECK_EQ(chunk_rows(1024, 1 << 20), 1 << 20);  // nothing to hide
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestRandom();
  fastjax::test::TestTooManyMatchings();
  fastjax::test::TestManyServers();
  fastjax::test::TestChunkRows();
  return fastjax::test::Finish("stages_test");
}
