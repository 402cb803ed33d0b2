// All server pairs side by side; rows stay on their own NICs, and the device at the other end hands them on, as
// libraries for expert parallelism do.
#include <memory>

#include "planner/all_pairs.h"
#include "planner/balance.h"
#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

// A pair's rail carries one device's blocks.
int64_t MaxEntries(const Topology& topology) {
  const int64_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  return 2 * m - 1 + 2 * peers * (2 * m - 1) + MaxEntriesOfCuts(topology);
}

}  // namespace

constexpr SchedulerInfo kRelayScheduler = {
    {"relay", "rows cross over their own NICs and are handed on, between all servers side by side",
     /*order=*/30, /*stages_rows=*/true, NicNeed::kEachDevice, Choosing::kConsidered},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return MakeAllPairs(std::make_shared<Tiles>(topology, MakeBalancer(RailsOf(topology)), Quotas::kOrigins),
                          row_bytes);
    },
    MaxEntries,
    {1'500'000, /*block=*/1150, /*sent=*/10'000},  // measured like that of fast: within a quarter
    // Rows on rails of their own are summed with less help of the processor than those that are balanced.
    {1'600'000, /*block=*/760},
};

}  // namespace fastjax::planner
