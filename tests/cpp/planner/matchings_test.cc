// Covers of server matrices: everything is carried, one to one, by few matchings and in little more time than the
// busiest server needs.
#include "planner/matchings.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::kIdle;
using planner::MatchingBuilder;
using planner::MatchingList;

using Matrix = std::vector<int64_t>;

int64_t BusiestLine(int32_t n, const Matrix& units) {
  int64_t busiest = 0;
  for (int32_t a = 0; a < n; ++a) {
    int64_t leaving = 0;
    int64_t entering = 0;
    for (int32_t b = 0; b < n; ++b) {
      leaving += units[static_cast<size_t>(a) * n + b];
      entering += units[static_cast<size_t>(b) * n + a];
    }
    busiest = std::max({busiest, leaving, entering});
  }
  return busiest;
}

// Its length, having checked that it is a cover.
int64_t CheckCover(int32_t n, const Matrix& units, const MatchingList& matchings) {
  Matrix left = units;
  int64_t length = 0;
  for (int32_t i = 0; i < matchings.count(); ++i) {
    CHECK_GT(matchings.weights[i], 0);
    length += matchings.weights[i];
    std::vector<bool> receives(n);
    for (int32_t s = 0; s < n; ++s) {
      const int32_t d = matchings.matching(i)[s];
      if (d == kIdle) continue;
      if (!CHECK(d >= 0 && d < n && !receives[d])) return length;
      receives[d] = true;
      int64_t& pair = left[static_cast<size_t>(s) * n + d];
      pair = std::max<int64_t>(pair - matchings.weights[i], 0);
    }
  }
  CHECK_EQ(*std::max_element(left.begin(), left.end()), 0);
  CHECK_LE(matchings.count(), planner::MaxMatchings(n));
  return length;
}

// Rounding to coarser units may add one for each matching.
int64_t CoarseUnits(int32_t n, int64_t bound) { return (bound >> 28) * planner::MaxMatchings(n); }

void CheckBuild(int32_t n, const Matrix& units, MatchingBuilder* builder) {
  const int64_t busiest = BusiestLine(n, units);
  const int64_t coarse = CoarseUnits(n, busiest);
  builder->Build(units.data(), 0);
  CHECK_EQ(builder->bound(), busiest);
  const int64_t length = CheckCover(n, units, builder->matchings());
  if (n <= 16) CHECK_LE(length, busiest + busiest / 100 + coarse);
  for (const int64_t startup : {busiest / 100, busiest, 10 * busiest}) {
    builder->Build(units.data(), startup);
    const int64_t longer = CheckCover(n, units, builder->matchings());
    // docs/design/stages.md
    if (n > 16) continue;
    CHECK_LE(longer + startup * builder->matchings().count(),
             (busiest + coarse + startup * planner::MaxPeeled(n)) / 100 * 108 + 108);
  }
}

Matrix Random(int32_t n, uint64_t limit, uint64_t density, std::mt19937_64* random) {
  Matrix units(static_cast<size_t>(n) * n);
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      if (s != d && (*random)() % density == 0) units[static_cast<size_t>(s) * n + d] = (*random)() % limit;
    }
  }
  return units;
}

TEST(Random) {
  std::mt19937_64 random(7);
  for (const int32_t n : {1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 40, 63, 64, 65, 130}) {
    const Context context(std::to_string(n) + " servers");
    MatchingBuilder builder(n);
    for (int32_t round = 0; round < (n <= 16 ? 200 : 4); ++round) {
      const uint64_t limit = uint64_t{1} << (1 + random() % 40);
      CheckBuild(n, Random(n, limit, 1 + random() % 6, &random), &builder);
    }
  }
}

// Popularity alone: shifted pairs are as short as can be and as few.
TEST(Shifts) {
  constexpr int32_t kServers = 6;
  MatchingBuilder builder(kServers);
  Matrix units(kServers * kServers);
  for (int32_t s = 0; s < kServers; ++s) {
    for (int32_t d = 0; d < kServers; ++d) units[s * kServers + d] = s == d ? 0 : 1000 / (d + 1);
  }
  builder.Build(units.data(), 0);
  CHECK_EQ(builder.matchings().count(), kServers - 1);
  CHECK_EQ(CheckCover(kServers, units, builder.matchings()), 5000);
}

// Dear start-ups make matchings as few as the busiest server's peers, or nearly; those that cost more than all units
// are left out of account.
TEST(DearStartups) {
  std::mt19937_64 random(5);
  constexpr int32_t kServers = 12;
  MatchingBuilder builder(kServers);
  const Matrix units = Random(kServers, 1000, 1, &random);
  builder.Build(units.data(), 0);
  const int32_t many = builder.matchings().count();
  builder.Build(units.data(), 3'000);
  CHECK_LT(builder.matchings().count(), many);
  CHECK_LE(builder.matchings().count(), kServers + 3);
  CheckCover(kServers, units, builder.matchings());
  builder.Build(units.data(), 1'000'000);
  CHECK_EQ(builder.matchings().count(), many);
}

}  // namespace
}  // namespace fastjax::test
