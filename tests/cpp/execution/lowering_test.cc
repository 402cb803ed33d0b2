// Plans of all schedulers as steps: every row arrives once, whatever order the dependencies leave, both ends of a
// message agree, and nothing is taken on a plan's word.
#include "execution/lowering.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "execution/placement.h"
#include "lowering_replay.h"
#include "lowering_rig.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Scheduler;
using planner::Transfer;

void CheckOrder(const Setting& setting, int32_t process, Side* side) {
  Lowering& lowering = side->lowering;
  const auto key = [](const Step& step) {
    return std::tuple(step.action, step.phase, step.here, step.stage, step.peer);
  };
  const std::vector<Step>& steps = lowering.steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    CHECK_GT(step.transfers, 0);
    CHECK_EQ(setting.process_of[static_cast<size_t>(step.here)], process);
    if (i > 0) CHECK(key(steps[i - 1]) < key(step));
    const bool copies = setting.reaches.front().domain_of[static_cast<size_t>(step.here)] ==
                        setting.reaches.front().domain_of[static_cast<size_t>(step.peer)];
    CHECK_EQ(copies, step.action == Action::kCopy);
    CHECK_LT(PlanPipelineStep(lowering, step), lowering.plan_pipeline_steps());
  }
  // The same steps by pipeline step.
  const std::vector<int32_t> order = lowering.ByPipelineStep();
  CHECK_EQ(order.size(), steps.size());
  for (size_t i = 1; i < order.size(); ++i) {
    const Step& before = steps[static_cast<size_t>(order[i - 1])];
    const Step& step = steps[static_cast<size_t>(order[i])];
    CHECK(std::pair(before.pipeline_step, order[i - 1]) < std::pair(step.pipeline_step, order[i]));
  }
}

// Sends and receives pair off, and agree in their rows and in their pipeline step.
void CheckMessages(const Sides& sides, int64_t* messages) {
  struct Ends {
    std::vector<Row> rows[2];
    int32_t pipeline_step[2];
    int32_t count[2] = {0, 0};
  };
  std::map<MessageKey, Ends> all;
  for (const auto& side : sides) {
    for (const Step& step : side->lowering.steps()) {
      if (step.action == Action::kCopy) continue;
      Ends& ends = all[KeyOf(side->lowering, step)];
      const int end = step.action == Action::kSend ? 0 : 1;
      ++ends.count[end];
      ends.rows[end] = RowsOf(side->lowering, step);
      ends.pipeline_step[end] = PlanPipelineStep(side->lowering, step);
    }
  }
  for (const auto& [key, ends] : all) {
    CHECK(ends.count[0] == 1 && ends.count[1] == 1);
    CHECK(ends.rows[0] == ends.rows[1]);
    CHECK_EQ(ends.pipeline_step[0], ends.pipeline_step[1]);
  }
  *messages += static_cast<int64_t>(all.size());
}

TEST(AllRowsArrive) {
  std::mt19937_64 random(1);
  int64_t messages = 0;
  const std::pair<int32_t, int32_t> kShapes[] = {{2, 4}, {4, 2}, {3, 3}, {1, 4}, {5, 1}};
  for (uint64_t round = 0; round < 300; ++round) {
    const auto& [servers, per_server] = kShapes[round % 5];
    const planner::Topology topology = MakeTopology(servers, per_server);
    const Scheduler scheduler = AllSchedulers()[round / 5 % AllSchedulers().size()];
    const Matrix rows = Fill(topology, [&](int32_t, int32_t) { return random() % 3 == 0 ? 0 : random() % 14; });
    Setting setting(topology, scheduler, rows, random() % 2 == 1, random());
    const auto domains = static_cast<Domains>(random() % 3);
    setting.Deal(1 + static_cast<int32_t>(random() % 4), domains, per_server);
    const Sides sides = LowerAll(setting);
    for (int32_t process = 0; process < setting.processes; ++process) {
      CheckOrder(setting, process, sides[static_cast<size_t>(process)].get());
    }
    CheckMessages(sides, &messages);
    ReplayByPipelineSteps(&setting, sides);
    ReplayByGates(&setting, sides);
  }
  CHECK_GT(messages, 1000);
}

// Where nothing rests on the way, nothing waits.
TEST(UnstagedPlans) {
  const planner::Topology topology = MakeTopology(3, 2);
  const Matrix rows = Fill(topology, [](int32_t i, int32_t j) { return 1 + i + j; });
  for (const Scheduler scheduler : {Scheduler::kDirect, Scheduler::kSpreadout, Scheduler::kFast}) {
    Setting setting(topology, scheduler, rows, false, 2);
    setting.Deal(1, Domains::kProcess, 2);
    const Sides sides = LowerAll(setting);
    const Lowering& lowering = sides.front()->lowering;
    const bool stages = scheduler == Scheduler::kFast;
    const int32_t extra = stages ? 2 : 0;
    CHECK_EQ(lowering.plan_pipeline_steps(), lowering.plan_stages() + extra);
    for (const Step& step : lowering.steps()) {
      if (!stages) CHECK_EQ(step.opens >= 0, step.phase == Phase::kScaleOut);
      if (step.phase != Phase::kScaleOut || step.waits < 0) continue;
      if (!stages) CHECK_EQ(lowering.gates()[static_cast<size_t>(step.waits)], 0);
    }
  }
}

// What an exchange that plans itself takes from the planner is what others find in tables.
TEST(SlicesAndTables) {
  std::mt19937_64 random(3);
  for (const Scheduler scheduler : AllSchedulers()) {
    const planner::Topology topology = MakeTopology(3, 3);
    for (const Case& test_case : MakeCases(topology, random())) {
      planner::Planner planner(topology, scheduler, 64);
      planner.Plan(test_case.traffic.data());
      planner::Slicer slicer(&planner);
      std::vector<int32_t> words(static_cast<size_t>(planner::TableWords(topology, scheduler)));
      for (int32_t device = 0; device < topology.devices(); ++device) {
        CHECK(WriteTable(&planner, device, words.data()));
        for (const bool backwards : {false, true}) {
          DevicePlan taken;
          DevicePlan viewed;
          taken.Take(slicer.Of(device), backwards);
          viewed.View(words.data(), backwards);
          CHECK(taken.here && viewed.here);
          CHECK_EQ(taken.stages, viewed.stages);
          CHECK_EQ(taken.staging_rows, viewed.staging_rows);
          CHECK(taken.scheduler == viewed.scheduler);
          std::vector<Transfer> planned;
          for (const Transfer& transfer : slicer.Of(device).transfers) {
            planned.push_back(backwards ? planner::Transposed(transfer, taken.stages) : transfer);
          }
          CHECK(AllEqual(TransfersOf(taken), planned));
          CHECK(AllEqual(TransfersOf(viewed), planned));
        }
      }
    }
  }
}

// Blocks that have to arrive before they are summed: those that come from another domain, and no others.
TEST(Blocks) {
  std::mt19937_64 random(4);
  for (uint64_t round = 0; round < 60; ++round) {
    const planner::Topology topology = MakeTopology(2, 3);
    const Matrix rows = Fill(topology, [&](int32_t, int32_t) { return random() % 2 == 0 ? 0 : random() % 9; });
    Setting setting(topology, Scheduler::kDirect, rows, true, random(), round % 10 == 9 ? 0 : 4);
    setting.Deal(1 + static_cast<int32_t>(random() % 3), static_cast<Domains>(round % 3), 3);
    std::set<std::pair<int32_t, int32_t>> sent;
    std::set<std::pair<int32_t, int32_t>> received;
    for (int32_t process = 0; process < setting.processes; ++process) {
      Placement placement;
      placement.Begin(*setting.site, setting.args, setting.row_bytes, setting.traffic);
      const Reach& reach = setting.reaches[static_cast<size_t>(process)];
      Lowering lowering;
      lowering.LowerBlocks(reach, setting.traffic, placement);
      for (const Step& step : lowering.steps()) {
        CHECK(step.action != Action::kCopy);
        CHECK(step.opens < 0 && step.waits < 0);
        const bool sends = step.action == Action::kSend;
        const int32_t origin = sends ? step.here : step.peer;
        const int32_t target = sends ? step.peer : step.here;
        CHECK((sends ? sent : received).insert({origin, target}).second);
        CHECK_EQ(static_cast<int64_t>(RowsOf(lowering, step).size()), setting.traffic.rows(origin, target));
      }
      for (int32_t target = 0; target < 6; ++target) {
        if (reach.here[static_cast<size_t>(target)] == 0) continue;
        for (int32_t origin = 0; origin < 6; ++origin) {
          const int32_t arrival = lowering.ArrivalOf(origin, target);
          CHECK_EQ(arrival >= 0, received.count({origin, target}) > 0);
          if (arrival < 0) continue;
          const Step& step = lowering.steps()[static_cast<size_t>(arrival)];
          CHECK(step.action == Action::kReceive && step.here == target && step.peer == origin);
        }
      }
    }
    std::set<std::pair<int32_t, int32_t>> expected;
    for (int32_t origin = 0; origin < 6 && setting.row_bytes > 0; ++origin) {
      for (int32_t target = 0; target < 6; ++target) {
        const auto& domains = setting.reaches.front().domain_of;
        const bool apart = domains[static_cast<size_t>(origin)] != domains[static_cast<size_t>(target)];
        if (apart && setting.traffic.rows(origin, target) > 0) expected.insert({origin, target});
      }
    }
    CHECK(sent == expected && received == expected);
  }
}

constexpr char kRefusal[] =
    "exchange over axis 'x' (channel 7): the plan moves rows that the exchange does not have. Pass what "
    "plan_ragged_all_to_all returned, unchanged.";

TEST(HostilePlans) {
  const planner::Topology topology = MakeTopology(2, 4);
  const Matrix rows = Fill(topology, [](int32_t i, int32_t j) { return 3 + (5 * i + j) % 9; });
  Setting setting(topology, Scheduler::kFast, rows, false, 5);
  setting.Deal(1, Domains::kProcess, 4);
  Side side(setting.PlansOf(0));
  CHECK_EQ(side.Lower(setting, 0).message, "");
  const size_t steps = side.lowering.steps().size();
  const int64_t staged = side.plans[2].staging_rows;
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
    const Status status = side.Lower(setting, 0);
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_EQ(status.message, kRefusal);
    CHECK(side.lowering.steps().empty());
    write(entry, good);
    side.placement.Release();
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
  Side claims(setting.PlansOf(0));
  CHECK_EQ(claims.Lower(setting, 0).message, kRefusal);
  stages = planned_stages;
  // More pipeline steps than can be numbered.
  refused(Phase::kRedistribute, [](Transfer* t) { t->stage = std::numeric_limits<int32_t>::max() - 1; });
  // A stage far off is only one more of those in use.
  const int64_t gates = static_cast<int64_t>(side.lowering.gates().size());
  constexpr int32_t kFar = std::numeric_limits<int32_t>::max() - 2;
  Transfer far = planner::TableView(setting.TableOf(2).data()).entry(find(Phase::kScaleOut));
  far.stage = kFar;
  write(find(Phase::kScaleOut), far);
  CHECK_EQ(gates, 0);
  CHECK_EQ(side.Lower(setting, 0).message, "");
  CHECK_EQ(side.lowering.gates().size(), 2 * 8 * side.lowering.stages().size());
  CHECK_LE(side.lowering.stages().size(), steps);
  CHECK_EQ(side.lowering.stages().back(), kFar);
  CHECK_EQ(side.lowering.ByPipelineStep().size(), side.lowering.steps().size());
}

// Rows of no bytes: nothing to do, but plans are still looked at.
TEST(Nothing) {
  const planner::Topology topology = MakeTopology(2, 2);
  const Matrix rows = Fill(topology, [](int32_t, int32_t) { return 5; });
  Setting setting(topology, Scheduler::kFast, rows, false, 6, 0);
  setting.Deal(1, Domains::kProcess, 2);
  Side side(setting.PlansOf(0));
  CHECK_EQ(side.Lower(setting, 0).message, "");
  CHECK(side.lowering.steps().empty());
  CHECK(side.lowering.ByPipelineStep().empty());
  CHECK(side.lowering.stages().empty());
  CHECK_GT(side.lowering.plan_stages(), 0);
  std::vector<int32_t>& words = setting.TableOf(1);
  for (int32_t i = 0; i < words[planner::kEntries]; ++i) {
    words[static_cast<size_t>(planner::kHeaderWords + 2 * 4 + planner::kEntryWords * i + planner::kRowsWord)] = 100;
  }
  CHECK_EQ(side.Lower(setting, 0).message, kRefusal);
}

// Numbers of more values than the table of those seen last has places.
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

// Once it has seen the largest exchange, the next is lowered without allocating.
TEST(Warm) {
  const planner::Topology topology = MakeTopology(4, 2);
  const Matrix rows = Fill(topology, [](int32_t i, int32_t j) { return 2 + (i + 3 * j) % 7; });
  Setting setting(topology, Scheduler::kFast, rows, true, 8);
  setting.Deal(2, Domains::kProcess, 2);
  Side side(setting.PlansOf(0));
  const std::vector<std::vector<int32_t>>& tables = setting.tables;
  for (const bool warm : {false, true}) {
    const long before = Allocations();
    for (int32_t p = 0; p < 8; ++p) {
      DevicePlan& plan = side.plans[static_cast<size_t>(setting.site->rank_of[p])];
      if (plan.here) plan.View(tables[static_cast<size_t>(p)].data(), true);
    }
    const bool ok = side.Lower(setting, 0).ok();
    const size_t steps = side.lowering.ByPipelineStep().size();
    side.placement.Release();
    side.lowering.LowerBlocks(setting.reaches[0], setting.traffic, side.placement);
    const long allocations = Allocations() - before;
    CHECK(ok);
    CHECK_GT(steps, 0U);
    CHECK_EQ(allocations == 0, warm);
  }
}

}  // namespace
}  // namespace fastjax::test
