// Hashes of plans, and plans for more rails and servers than random_plans draws. That plans are right is checked there;
// how long they take, and how near to the bounds they are, in Python (tests/host/test_plan.py, test_bound.py).
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
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
void TestManyRails() {
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

void TestHash() {
  const Topology topology = MakeTopology(2, 4);
  const Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return i * 3 + j; });
  Planner plan(topology, Scheduler::kFast, 64);
  plan.Plan(traffic.data());
  const uint64_t hash = plan.hash();
  for (size_t entry = 0; entry < traffic.size(); ++entry) {
    Matrix other = traffic;
    ++other[entry];
    plan.Plan(other.data());
    CHECK_NE(plan.hash(), hash);
  }
  plan.Plan(traffic.data());
  CHECK_EQ(plan.hash(), hash);
  const auto hash_of = [&](const Topology& t, Scheduler scheduler, int64_t row_bytes) {
    Planner other(t, scheduler, row_bytes);
    other.Plan(traffic.data());
    return other.hash();
  };
  CHECK_NE(hash_of(topology, Scheduler::kDirect, 64), hash);
  CHECK_NE(hash_of(topology, Scheduler::kFast, 65), hash);
  CHECK_NE(hash_of(MakeTopology(4, 2), Scheduler::kFast, 64), hash);
  Topology slower = topology;
  slower.scale_out_bandwidth /= 2;
  CHECK_NE(hash_of(slower, Scheduler::kFast, 64), hash);
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestManyRails();
  fastjax::test::TestHash();
  return fastjax::test::Finish("planner_test");
}
