// That a scheduler is one file and one line: the planner with farthest_first.cc and a list that names it, and nothing
// else.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "choices.h"
#include "plan_checks.h"
#include "planner/planner.h"
#include "planner/schedule.h"
#include "planner/table.h"
#include "problem.h"
#include "support/check.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;

constexpr int32_t kMostDevices = 64;

// Numbers stand in tables, hashes and files: those of the product never change.
TEST(Numbers) {
  constexpr std::string_view kNumbered[] = {"direct", "spreadout", "fast", "rails", "balanced", "relay", "auto"};
  std::vector<std::string_view> names;
  for (const Scheduler scheduler : AllSchedulers()) names.push_back(planner::NameOf(scheduler));
  CHECK_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
  if (!CHECK_GT(names.size(), std::size(kNumbered))) return;
  CHECK(std::equal(std::begin(kNumbered), std::end(kNumbered), names.begin()));
  CHECK_EQ(names.back(), "farthest_first");
  CHECK_EQ(names.size(), static_cast<size_t>(Scheduler::kFarthestFirst) + 1);
}

// The same checks that random plans of the product's schedulers pass.
void CheckRandomPlans(Scheduler scheduler) {
  constexpr uint64_t kPlans = 100;
  for (uint64_t seed = 0; seed < kPlans; ++seed) {
    Choices choices(seed);
    const Problem problem = DrawProblem(scheduler, kMostDevices, &choices);
    std::ostringstream text;
    Print(problem, &text);
    const Context context(text.str());
    CHECK_EQ(CheckProblem(problem), "");
  }
}

bool Among(const Planner& plan, Scheduler scheduler) {
  return std::any_of(plan.choices()->begin(), plan.choices()->end(),
                     [&](const planner::Choice& choice) { return choice.scheduler == scheduler; });
}

// `auto` looks at all that want to be considered and can be used, and at no other.
void CheckAuto(const Topology& topology, bool usable) {
  const Case test_case = MakeCases(topology, 1, 3).front();
  Planner plan(topology, Scheduler::kAuto, 64);
  plan.Plan(test_case.traffic.data());
  CHECK_EQ(plan.chosen() == Scheduler::kFarthestFirst, usable);
  for (const Scheduler scheduler : AllSchedulers()) {
    const planner::SchedulerTraits& traits = planner::GetSchedulerInfo(scheduler).traits;
    const bool fits = usable || traits.nics == planner::NicNeed::kAnyOfServer;
    CHECK_EQ(Among(plan, scheduler), fits && traits.choosing == planner::Choosing::kConsidered);
  }
  // Its table has room for any of them.
  CHECK_EQ(planner::TableWords(topology, Scheduler::kAuto), planner::TableWords(topology, Scheduler::kFarthestFirst));
}

TEST(RandomPlans) {
  CheckRandomPlans(Scheduler::kFarthestFirst);
  CheckRandomPlans(Scheduler::kAuto);
}

TEST(Auto) {
  Topology topology = MakeTopology(3, 2);
  CheckAuto(topology, true);
  topology.nic_bandwidths.assign(6, topology.scale_out_bandwidth);
  topology.nic_bandwidths[4] = 0;
  CheckAuto(topology, false);
}

}  // namespace
}  // namespace fastjax::test
