// What plans become in steps that no exchange shows: nothing is taken on a plan's word, and nothing waits that need
// not. That rows arrive in any order that dependences leave is in network_exchange_test, gpu_network_test and
// tests/exchange_checks.
#include "execution/lowering.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "execution/placement.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "support/check.h"
#include "support/group_exchange.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Scheduler;
using planner::Transfer;

// An exchange of one process, whose devices reach each other's memory.
struct Setting : GroupExchange {
  Setting(const planner::Topology& topology, Scheduler scheduler, const Matrix& rows)
      : GroupExchange(topology.devices(), 5) {
    site->process_of.assign(static_cast<size_t>(site->group_size), 0);
    reach.here.assign(site->process_of.size(), 1);
    reach.domain_of = site->process_of;
    Plan(topology, scheduler, rows, 2);
    Bring(false, 4);
  }
  ~Setting() { placement.Release(); }

  // By the tables as they are.
  Status Lower() {
    Decode(0, false, &plans);
    placement.Release();
    placement.Begin(*site, args, 4, traffic);
    Status status = placement.TakeStaging(plans);
    if (status.ok()) status = lowering.Lower(reach, plans, placement);
    if (status.ok()) lowering.LinkGates();
    return status;
  }
  std::vector<int32_t>& TableOf(int32_t rank) { return tables[static_cast<size_t>(site->position_at[rank])]; }

  Reach reach;
  DevicePlans plans;
  Placement placement;
  Lowering lowering;
};

// Where nothing rests on the way, nothing waits.
TEST(UnstagedPlans) {
  const planner::Topology topology = MakeTopology(3, 2);
  const Matrix rows = Fill(topology, [](int32_t i, int32_t j) { return 1 + i + j; });
  for (const Scheduler scheduler : {Scheduler::kDirect, Scheduler::kSpreadout, Scheduler::kFast}) {
    Setting setting(topology, scheduler, rows);
    CHECK_EQ(setting.Lower().message, "");
    const Lowering& lowering = setting.lowering;
    const bool stages = scheduler == Scheduler::kFast;
    CHECK_EQ(lowering.plan_pipeline_steps(), lowering.plan_stages() + (stages ? 2 : 0));
    for (const Step& step : lowering.steps()) {
      if (step.waits >= 0 && !stages) CHECK_EQ(lowering.gates()[static_cast<size_t>(step.waits)], 0);
    }
  }
}

constexpr char kRefusal[] =
    "exchange over axis 'x' (channel 7): the plan moves rows that the exchange does not have. Pass what "
    "plan_ragged_all_to_all returned, unchanged.";

TEST(HostilePlans) {
  const planner::Topology topology = MakeTopology(2, 4);
  const Matrix rows = Fill(topology, [](int32_t i, int32_t j) { return 3 + (5 * i + j) % 9; });
  Setting setting(topology, Scheduler::kFast, rows);
  CHECK_EQ(setting.Lower().message, "");
  const size_t steps = setting.lowering.steps().size();
  const int64_t staged = setting.plans[2].staging_rows;
  // The first entry of rank 2 for rows that it hands on in this phase.
  const auto find = [&](Phase phase) {
    const planner::TableView table(setting.TableOf(2).data());
    for (int32_t i = 0; i < table.entries(); ++i) {
      const Transfer transfer = table.entry(i);
      if (transfer.phase == phase && transfer.src == 2) return i;
    }
    CHECK(false);
    return 0;
  };
  const auto write = [&](int32_t entry, const Transfer& transfer) {
    std::vector<int32_t>& words = setting.TableOf(2);
    planner::WriteEntry(transfer, words.data() + planner::kHeaderWords + 2 * 8 + planner::kEntryWords * entry);
  };
  const auto refused = [&](Phase phase, const std::function<void(Transfer*)>& damage) {
    const int32_t entry = find(phase);
    const Transfer good = planner::TableView(setting.TableOf(2).data()).entry(entry);
    Transfer bad = good;
    damage(&bad);
    write(entry, bad);
    const Status status = setting.Lower();
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_EQ(status.message, kRefusal);
    CHECK(setting.lowering.steps().empty());
    write(entry, good);
  };
  // What a table can say at most.
  constexpr int64_t kHuge = std::numeric_limits<int32_t>::max();
  refused(Phase::kLocal, [](Transfer* t) { t->first_row += 1; });
  refused(Phase::kLocal, [](Transfer* t) { t->first_row = -1; });
  refused(Phase::kLocal, [](Transfer* t) { t->rows = 0; });
  refused(Phase::kLocal, [](Transfer* t) { t->rows = kHuge; });
  refused(Phase::kLocal, [](Transfer* t) { t->origin = 5; });
  refused(Phase::kBalance, [](Transfer* t) { t->dst_row = Transfer::kInPlace; });
  refused(Phase::kBalance, [](Transfer* t) { t->dst_row = kHuge; });
  refused(Phase::kRedistribute, [&](Transfer* t) { t->src_row = staged - t->rows + 1; });
  refused(Phase::kRedistribute, [](Transfer* t) { t->src_row = -2; });
  // More stages than transfers.
  int32_t& stages = setting.TableOf(2)[planner::kStages];
  const int32_t planned_stages = std::exchange(stages, 10'000);
  CHECK_EQ(setting.Lower().message, kRefusal);
  stages = planned_stages;
  // More pipeline steps than can be numbered.
  refused(Phase::kRedistribute, [](Transfer* t) { t->stage = std::numeric_limits<int32_t>::max() - 1; });
  // A stage far off is only one more of those in use.
  constexpr int32_t kFar = std::numeric_limits<int32_t>::max() - 2;
  Transfer far = planner::TableView(setting.TableOf(2).data()).entry(find(Phase::kScaleOut));
  far.stage = kFar;
  write(find(Phase::kScaleOut), far);
  CHECK_EQ(setting.Lower().message, "");
  CHECK_EQ(setting.lowering.gates().size(), 2 * 8 * setting.lowering.stages().size());
  CHECK_LE(setting.lowering.stages().size(), steps);
  CHECK_EQ(setting.lowering.stages().back(), kFar);
  CHECK_EQ(setting.lowering.ByPipelineStep().size(), setting.lowering.steps().size());
}

// Few values and many, in any order.
TEST(Numbering) {
  std::mt19937_64 random(7);
  Numbering numbering;
  for (const uint64_t most : {uint64_t{20}, uint64_t{100'000}, uint64_t{1} << 31}) {
    numbering.Clear();
    std::set<int32_t> values;
    for (int i = 0; i < 5000; ++i) {
      const auto value = static_cast<int32_t>(random() % most) - 1;
      values.insert(value);
      numbering.Add(value);
    }
    numbering.Number();
    CHECK_EQ(numbering.count(), static_cast<int32_t>(values.size()));
    int32_t number = 0;
    for (const int32_t value : values) CHECK_EQ(numbering.NumberOf(value), number++);
  }
}

}  // namespace
}  // namespace fastjax::test
