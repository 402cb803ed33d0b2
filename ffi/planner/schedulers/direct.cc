// Every block goes straight to its target, all at once.
#include <memory>

#include "planner/schedule.h"
#include "planner/straight.h"

namespace fastjax::planner {

constexpr SchedulerInfo kDirectScheduler = {
    {"direct", "every block goes straight to its target, all at once",
     /*order=*/60, /*stages_rows=*/false, NicNeed::kEachDevice, Choosing::kConsidered},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return std::make_unique<Straight>(topology, row_bytes, false);
    },
    MaxEntriesOneTransferPerPeer,
    {600'000, /*block=*/560},  // measured like that of fast: within a tenth
    kStraightPricing,
};

}  // namespace fastjax::planner
