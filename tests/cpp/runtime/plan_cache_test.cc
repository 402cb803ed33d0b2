// Plans that are kept: by whom they are shared, for how long, and what is refused.
#include "runtime/plan_cache.h"

#include <cstdint>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "planner/topology.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;
using planner::Topology;

constexpr int64_t kRowBytes = 4096;

Matrix Uniform(const Topology& topology, int64_t rows) {
  return Fill(topology, [&](int32_t, int32_t) { return rows; });
}

// Whether traffic of so many rows in each block had to be planned.
bool MakesPlan(PlanCache* cache, const Topology& topology, int64_t rows) {
  bool made = false;
  CHECK_EQ(std::string(cache->Plan(Uniform(topology, rows).data(), [](planner::Planner*) {}, &made)), "");
  return made;
}

TEST(Sharing) {
  const Topology topology = MakeTopology(2, 2);
  const std::vector<int64_t> words = {2, 2};
  auto cache = PlanCache::Of(words, topology, Scheduler::kFast, kRowBytes);
  CHECK(PlanCache::Of(words, topology, Scheduler::kFast, kRowBytes) == cache);
  CHECK(PlanCache::Of({2, 2, 450}, topology, Scheduler::kFast, kRowBytes) != cache);
  CHECK(PlanCache::Of(words, topology, Scheduler::kSpreadout, kRowBytes) != cache);
  CHECK(PlanCache::Of(words, topology, Scheduler::kFast, 2 * kRowBytes) != cache);
  // A cache that no call site uses is given up, with its plans.
  const int64_t before = PlansMade();
  CHECK(MakesPlan(cache.get(), topology, 3));
  CHECK(!MakesPlan(PlanCache::Of(words, topology, Scheduler::kFast, kRowBytes).get(), topology, 3));
  CHECK_EQ(PlansMade(), before + 1);
  cache = nullptr;
  CHECK(MakesPlan(PlanCache::Of(words, topology, Scheduler::kFast, kRowBytes).get(), topology, 3));
  CHECK_EQ(PlansMade(), before + 2);
}

// Four are kept, those that were used last; of more than 512 devices, one.
TEST(WhatIsKept) {
  const Topology topology = MakeTopology(2, 2);
  PlanCache cache(topology, Scheduler::kFast, kRowBytes);
  for (int64_t rows = 1; rows <= 4; ++rows) CHECK(MakesPlan(&cache, topology, rows));
  for (const int64_t rows : {4, 3, 2, 1}) CHECK(!MakesPlan(&cache, topology, rows));
  CHECK(MakesPlan(&cache, topology, 5));
  for (const int64_t rows : {3, 2, 1, 5}) CHECK(!MakesPlan(&cache, topology, rows));
  CHECK(MakesPlan(&cache, topology, 4));
  const Topology large = MakeTopology(513, 1);
  PlanCache only_one(large, Scheduler::kSpreadout, kRowBytes);
  CHECK(MakesPlan(&only_one, large, 0));
  CHECK(!MakesPlan(&only_one, large, 0));
  CHECK(MakesPlan(&only_one, large, 1));
  CHECK(MakesPlan(&only_one, large, 0));
}

// Rows that int32 cannot number are refused, in words for the user.
TEST(Refusals) {
  constexpr int64_t kMost = INT32_MAX;
  const auto refusal = [](const Topology& topology, const Matrix& traffic) {
    PlanCache cache(topology, Scheduler::kFast, kRowBytes);
    bool made = false;
    int64_t taken = 0;
    const std::string said = cache.Plan(traffic.data(), [&](planner::Planner*) { ++taken; }, &made);
    CHECK_EQ(taken, said.empty() ? 1 : 0);
    return said;
  };
  Topology topology = MakeTopology(2, 1);
  CHECK_EQ(refusal(topology, {0, kMost, 0, 0}), "");
  CHECK_EQ(refusal(topology, {0, kMost + 1, 0, 0}), "a device sends 2^31 rows or more to another; split the exchange.");
  // One device of each server has a NIC, and the other's rows, to two servers, rest there.
  topology = MakeTopology(3, 2);
  topology.nic_bandwidths = {50, 0, 50, 0, 50, 0};
  const Matrix traffic = Fill(topology, [&](int32_t i, int32_t j) { return i == 1 && j > 1 ? kMost : 0; });
  CHECK_EQ(refusal(topology, traffic), "a device stages 2^31 rows or more for others; split the exchange.");
}

}  // namespace
}  // namespace fastjax::test
