// A planner that has seen its traffic once plans without allocating.
#include <cstdint>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

void CheckWarm(planner::Scheduler scheduler) {
  const planner::Topology topology = MakeTopology(4, 4);
  planner::Planner plan(topology, scheduler, 1 << 20);
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
  for (const planner::Scheduler scheduler : AllSchedulers()) CheckWarm(scheduler);
}

}  // namespace
}  // namespace fastjax::test
