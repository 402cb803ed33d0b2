// Call sites with any numbering of partitions and ranks.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_SITES_H_
#define FASTJAX_TESTS_CPP_SUPPORT_SITES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "exchange/call_site.h"

namespace fastjax::test {

// Far beyond the time limit of any test: nothing that uses it may time out.
inline constexpr int64_t kNoTimeoutMs = 3'600'000;

inline std::vector<int32_t> Numbers(int32_t count, std::mt19937_64* random) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (random != nullptr) std::shuffle(numbers.begin(), numbers.end(), *random);
  return numbers;
}

// Partitions are dealt to groups, and ranks to positions, in order, or at random when there is a `random`. Each site is
// of a program of its own: tests number their launches alike.
inline std::shared_ptr<CallSite> MakeSite(int32_t groups, int32_t group_size, int64_t timeout_ms = kNoTimeoutMs,
                                          std::mt19937_64* random = nullptr) {
  auto site = std::make_shared<CallSite>();
  static std::atomic<int64_t> programs{0};
  site->program = "program " + std::to_string(programs++);
  site->operation = "exchange";
  site->axis = "'x'";
  site->channel = 7;
  site->timeout_ms = timeout_ms;
  site->group_size = group_size;
  const std::vector<int32_t> partitions = Numbers(groups * group_size, random);
  site->group_of.resize(partitions.size());
  site->position_of.resize(partitions.size());
  for (int32_t i = 0; i < groups * group_size; ++i) {
    site->group_of[partitions[i]] = i / group_size;
    site->position_of[partitions[i]] = i % group_size;
    site->partition_at.push_back(partitions[i]);
  }
  site->rank_of = Numbers(group_size, random);
  site->position_at.resize(site->rank_of.size());
  for (int32_t p = 0; p < group_size; ++p) site->position_at[site->rank_of[p]] = p;
  return site;
}

// Which processes devices belong to.
enum class Owners : uint8_t {
  kServers,  // processes are servers
  kPairs,    // two servers a process, where there are more than two
  kHalves,   // two processes a server, where it has two devices
  kAny,      // dealt at random
};

// Gives every partition of the site a process, and rails in order; returns the number of processes.
inline int32_t Deal(Owners owners, int32_t devices_per_server, std::mt19937_64* random, CallSite* site) {
  const int32_t servers = std::max(1, site->group_size / devices_per_server);
  const int32_t any = 2 + static_cast<int32_t>((*random)() % 3);
  int32_t processes = 0;
  for (int32_t partition = 0; partition < site->partitions(); ++partition) {
    const int32_t rank = site->rank_of[site->position_of[partition]];
    const int32_t server = rank / devices_per_server;
    int32_t owner = server;
    if (owners == Owners::kPairs && servers > 2) owner = server / 2;
    if (owners == Owners::kHalves && devices_per_server > 1) {
      owner = 2 * server + (2 * (rank % devices_per_server) >= devices_per_server ? 1 : 0);
    }
    if (owners == Owners::kAny) owner = static_cast<int32_t>((*random)() % static_cast<uint64_t>(any));
    site->process_of.push_back(owner);
    processes = std::max(processes, owner + 1);
  }
  std::vector<int32_t> rails(static_cast<size_t>(processes), 0);
  for (const int32_t owner : site->process_of) site->rail_of.push_back(rails[owner]++);
  return processes;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_SITES_H_
