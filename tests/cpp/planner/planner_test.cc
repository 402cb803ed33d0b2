// Plans for more rails and servers than random_plans draws. What plans promise is checked there; how near to the bounds
// they are, and that hashes tell them apart, in Python (tests/host/test_bound.py, test_stage_tables.py).
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

// All schedulers, where there are more rails or servers than random_plans draws.
TEST(ManyRails) {
  for (const auto& [servers, local] : {std::pair(70, 1), std::pair(2, 66)}) {
    const Topology topology = MakeTopology(servers, local);
    for (const Scheduler scheduler : AllSchedulers()) {
      Planner plan(topology, scheduler, 64);
      for (const Case& test_case : SomeCases(topology, 3)) {
        const Context context(std::to_string(static_cast<int>(scheduler)) + ", " + test_case.name);
        plan.Plan(test_case.traffic.data());
        const std::vector<Transfer> all = AllTransfers(&plan);
        CheckShape(topology, all, plan.num_stages());
        CheckReplay(topology, test_case.traffic, all, StagingRows(plan));
      }
    }
  }
}

// A planner that has seen its traffic once plans without allocating.
void CheckWarm(Scheduler scheduler) {
  const Topology topology = MakeTopology(4, 4);
  Planner plan(topology, scheduler, 1 << 20);
  std::vector<int32_t> words(planner::TableWords(topology, scheduler));
  const std::vector<Case> cases = MakeCases(topology, 1);
  for (const bool warm : {false, true}) {
    const long before = Allocations();
    bool written = true;
    for (const Case& test_case : cases) {
      plan.Plan(test_case.traffic.data());
      for (int32_t device = 0; device < topology.devices(); ++device) {
        written = WriteTable(&plan, device, words.data()) && written;
      }
    }
    const long allocations = Allocations() - before;
    CHECK(written);
    CHECK_EQ(allocations == 0, warm);
  }
}

TEST(Warm) {
  for (const Scheduler scheduler : AllSchedulers()) CheckWarm(scheduler);
}

}  // namespace
}  // namespace fastjax::test
