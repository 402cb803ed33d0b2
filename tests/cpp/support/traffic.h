// Traffic matrices for tests: random ones and those that break planners.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_TRAFFIC_H_
#define FASTJAX_TESTS_CPP_SUPPORT_TRAFFIC_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/topology.h"

namespace fastjax::test {

using Matrix = std::vector<int64_t>;

struct Case {
  std::string name;
  Matrix traffic;
};

inline std::vector<planner::Scheduler> AllSchedulers() {
  std::vector<planner::Scheduler> all;
  for (int32_t i = 0; i < planner::NumSchedulers(); ++i) all.push_back(static_cast<planner::Scheduler>(i));
  return all;
}

inline planner::Topology MakeTopology(int32_t servers, int32_t devices_per_server) {
  planner::Topology topology;
  topology.servers = servers;
  topology.devices_per_server = devices_per_server;
  return topology;
}

inline bool AnyFailedNic(const planner::Topology& topology) {
  const auto& nics = topology.nic_bandwidths;
  return std::find(nics.begin(), nics.end(), 0) != nics.end();
}

// value(source, target) for every pair of devices.
template <typename Value>
Matrix Fill(const planner::Topology& topology, Value value) {
  const int32_t devices = topology.devices();
  Matrix traffic(static_cast<size_t>(devices) * devices);
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) traffic[static_cast<size_t>(i) * devices + j] = value(i, j);
  }
  return traffic;
}

inline Matrix Transposed(const planner::Topology& topology, const Matrix& traffic) {
  const int32_t devices = topology.devices();
  return Fill(topology, [&](int32_t i, int32_t j) { return traffic[static_cast<size_t>(j) * devices + i]; });
}

// All of them, or only the one of that number.
inline std::vector<Case> MakeCases(const planner::Topology& topology, uint64_t seed, int32_t only = -1) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int32_t last = topology.devices() - 1;
  const auto same_server = [&](int32_t i, int32_t j) { return topology.server_of(i) == topology.server_of(j); };
  std::vector<Case> cases;
  int32_t number = 0;
  const auto add = [&](const char* name, auto value) {
    if (only < 0 || only == number) cases.push_back({name, Fill(topology, value)});
    ++number;
  };
  add("zero", [](int32_t, int32_t) { return 0; });
  add("one row each", [](int32_t, int32_t) { return 1; });
  add("equal", [](int32_t, int32_t) { return 24; });
  add("random", [&](int32_t, int32_t) { return below(12); });
  add("random again", [&](int32_t, int32_t) { return below(40); });
  add("sparse", [&](int32_t, int32_t) { return below(5) == 0 ? below(30) : 0; });
  add("very sparse", [&](int32_t, int32_t) { return below(25) == 0 ? 1 + below(30) : 0; });
  add("heavy tail", [&](int32_t, int32_t) { return static_cast<int64_t>(40 / std::sqrt(1.0 + below(400))); });
  add("single flow", [&](int32_t i, int32_t j) { return i == 0 && j == last ? 77 : 0; });
  add("single row", [&](int32_t i, int32_t j) { return i == last && j == 0 ? 1 : 0; });
  add("only local", [&](int32_t i, int32_t j) { return same_server(i, j) ? below(9) : 0; });
  add("only cross", [&](int32_t i, int32_t j) { return same_server(i, j) ? 0 : below(9); });
  add("only self", [&](int32_t i, int32_t j) { return i == j ? 5 : 0; });
  add("rails only", [&](int32_t i, int32_t j) { return topology.local_of(i) == topology.local_of(j) ? below(50) : 0; });
  add("hot sender", [&](int32_t i, int32_t) { return i == 0 ? below(60) : 0; });
  add("hot receiver", [&](int32_t, int32_t j) { return j == last ? below(60) : below(3); });
  add("hot rail",
      [&](int32_t i, int32_t j) { return topology.local_of(i) == 0 && topology.local_of(j) == 0 ? 61 : below(2); });
  add("permutation", [&](int32_t i, int32_t j) { return j == (i * 5 + 3) % (last + 1) ? 31 : 0; });
  return cases;
}

// Under the thread sanitizer, which is ten times as slow and looks at threads, not at values, a sweep takes fewer
// cases.
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kCaseStep = 18;
#else
constexpr int64_t kCaseStep = 3;
#endif

// Every step-th of them, beginning with any: for sweeps over many settings, all of whose parts meet traffic of any
// kind.
inline std::vector<Case> SomeCases(const planner::Topology& topology, uint64_t seed, int64_t step = kCaseStep) {
  std::vector<Case> some;
  std::vector<Case> all = MakeCases(topology, seed);
  for (size_t i = seed % step; i < all.size(); i += step) some.push_back(std::move(all[i]));
  return some;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_TRAFFIC_H_
