// All server pairs side by side; rows are spread over the rails as "fast" does.
#include <algorithm>
#include <memory>

#include "planner/all_pairs.h"
#include "planner/balance.h"
#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

// docs/design/stage_tables.md derives this.
int64_t MaxEntries(const Topology& topology) {
  const int64_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t local = 2 * m - 1;
  const int64_t cut = MaxEntriesOfCuts(topology);
  if (m == 1) return local + 2 * peers + cut;
  return local + 2 * peers * (m * m + (m * m - m) + std::min(3 * m - 3, m * (m - 1))) + cut;
}

}  // namespace

constexpr SchedulerInfo kBalancedScheduler = {
    {"balanced", "rows are balanced over the rails and cross between all servers side by side",
     /*order=*/20, /*stages_rows=*/true, NicNeed::kAnyOfServer, Choosing::kConsidered},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return MakeAllPairs(MakeBalancedTiles(topology), row_bytes);
    },
    MaxEntries,
    {1'500'000, /*block=*/1150, /*sent=*/20'000},  // measured like that of fast: within a quarter
    kTileSums,
};

}  // namespace fastjax::planner
