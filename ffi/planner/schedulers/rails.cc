// RailS (arXiv 2510.19262), all server pairs side by side: every server sprays what it has for another over its rails,
// chunk by chunk, on its own information.
#include <memory>
#include <utility>

#include "planner/all_pairs.h"
#include "planner/balance.h"
#include "planner/scheduler_info.h"
#include "planner/spray.h"

namespace fastjax::planner {
namespace {

std::unique_ptr<Schedule> Make(const Topology& topology, int64_t row_bytes) {
  auto filler = std::make_unique<Sprayer>(RailsOf(topology), row_bytes);
  return MakeAllPairs(std::make_shared<Tiles>(topology, std::move(filler)), row_bytes);
}

// Measured like that of fast: within a quarter.
Picoseconds PlanningTime(const Topology& topology) {
  const Wide n = topology.servers;
  const Wide m = topology.devices_per_server;
  return 1000 * (1000 + 3 * (n * m) * (n * m) / 2 + 160 * (n - 1) * m * m);
}

// All chunks of a tile may lie on one rail.
int64_t MaxEntries(const Topology& topology) {
  const int32_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t local = 2 * int64_t{m} - 1;
  const int64_t rail = peers * Sprayer::MaxChunks(m);
  const int64_t cut = MaxEntriesOfCuts(topology);
  if (m == 1) return local + 2 * rail + cut;
  return local + 4 * rail + 2 * peers * Sprayer::MaxChunksOfDevice(m) + cut;
}

}  // namespace

// "auto" does not look at it: by the cost model it takes as long as "balanced", and longer to plan.
constexpr SchedulerInfo kRailsScheduler = {
    {"rails", "rows are sprayed over the rails and cross between all servers side by side",
     /*order=*/40, /*stages_rows=*/true, /*single_stage=*/false, NicNeed::kAnyOfServer, Choosing::kByName},
    Make,
    MaxEntries,
    PlanningTime,
    BalancedTilesTime,
};

}  // namespace fastjax::planner
