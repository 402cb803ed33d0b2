#include "plan_checks.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "digest.h"
#include "planner/pricing.h"
#include "planner/schedule.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/table_checks.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

// What schedulers promise beyond delivery and beyond what their traits say. A new scheduler that promises more has to
// say so here.
struct Promises {
  Scheduler scheduler;
  bool one_to_one;
  bool balanced;
  bool own_nics;        // rows cross over the NIC of the device that they come from, and are balanced nowhere
  bool never_cheapest;  // by the cost model there always is another as cheap that "auto" considers
};
constexpr Promises kPromises[] = {
    {Scheduler::kSpreadout, true, false, true, false}, {Scheduler::kFast, true, true, false, false},
    {Scheduler::kRails, false, false, false, true},    {Scheduler::kBalanced, false, true, false, false},
    {Scheduler::kRelay, false, false, true, false},    {Scheduler::kDirect, false, false, true, false},
};

Promises PromisesOf(Scheduler scheduler) {
  const auto* found = std::find_if(std::begin(kPromises), std::end(kPromises),
                                   [&](const Promises& known) { return known.scheduler == scheduler; });
  return found == std::end(kPromises) ? Promises{scheduler, false, false, false, false} : *found;
}

const planner::SchedulerTraits& TraitsOf(Scheduler scheduler) { return planner::GetSchedulerInfo(scheduler).traits; }

bool GoesRoundFailedNics(Scheduler scheduler) { return TraitsOf(scheduler).nics == planner::NicNeed::kAnyOfServer; }

void AddTable(TableWriter* writer, int32_t device, Digest* digest) {
  if (!writer->Write(device)) return digest->Add(0);
  digest->Add(static_cast<uint64_t>(writer->used()));
  for (int64_t word = 0; word < writer->used(); ++word) digest->Add(static_cast<uint32_t>(writer->words()[word]));
}

// Asks for devices one by one from the last or from the first on: that must make no difference.
uint64_t DigestPlan(Planner* plan, bool backwards, std::vector<Transfer>* all) {
  const int32_t devices = plan->topology().devices();
  TableWriter writer(plan);
  std::vector<uint64_t> tables(devices);
  for (int32_t i = 0; i < devices; ++i) {
    const int32_t device = backwards ? devices - 1 - i : i;
    Digest digest;
    AddTable(&writer, device, &digest);
    tables[device] = digest.value();
  }
  *all = AllTransfers(plan);
  Digest digest;
  for (const uint64_t table : tables) digest.Add(table);
  for (const Transfer& transfer : *all) AddTransfer(transfer, &digest);
  digest.Add(static_cast<uint64_t>(plan->num_stages()));
  digest.Add(plan->hash());
  return digest.value();
}

uint64_t DigestPlan(Planner* plan, bool backwards) {
  std::vector<Transfer> all;
  return DigestPlan(plan, backwards, &all);
}

void CheckList(Planner* plan, int32_t device, const std::vector<Transfer>& all, const std::vector<int32_t>& mine) {
  const planner::TransferRange listed = plan->DeviceTransfers(device);
  const auto same = [&](int32_t number, const Transfer& transfer) { return Equal(all[number], transfer); };
  CHECK(std::equal(mine.begin(), mine.end(), listed.begin(), listed.end(), same));
}

void CheckLists(Planner* plan, const std::vector<Transfer>& all) {
  const int32_t devices = plan->topology().devices();
  const auto by_device = ByDevice(devices, all);
  for (int32_t device = 0; device < devices; ++device) CheckList(plan, device, all, by_device[device]);
}

// A planner that is asked for one device only may do less; some devices of each problem are as good as all of many.
void CheckLoneDevices(const Problem& problem, const std::vector<Transfer>& all) {
  constexpr int32_t kLoneDevices = 2;
  const int32_t devices = problem.topology.devices();
  const auto by_device = ByDevice(devices, all);
  for (int32_t i = 0; i < kLoneDevices; ++i) {
    const int32_t device = static_cast<int32_t>((all.size() + static_cast<size_t>(i) * devices / 2) % devices);
    Planner lone(problem.topology, problem.scheduler, problem.row_bytes);
    lone.Plan(problem.traffic.traffic.data());
    CheckList(&lone, device, all, by_device[device]);
    CheckList(&lone, devices - 1 - device, all, by_device[devices - 1 - device]);
    CheckList(&lone, device, all, by_device[device]);
  }
}

void CheckTraits(const Planner& plan, const std::vector<Transfer>& all) {
  const planner::SchedulerTraits& traits = TraitsOf(plan.chosen());
  CHECK(traits.choosing != planner::Choosing::kChooses);
  if (plan.chosen() == Scheduler::kDirect) CHECK_LE(plan.num_stages(), 1);
  if (GoesRoundFailedNics(plan.chosen())) CheckRails(plan.topology(), all);
  if (traits.stages_rows) return;
  for (const int64_t rows : StagingRows(plan)) CHECK_EQ(rows, 0);
  for (const Transfer& transfer : all) CHECK(transfer.src == transfer.origin && transfer.dst == transfer.target);
}

void CheckOwnNics(const std::vector<Transfer>& all) {
  for (const Transfer& transfer : all) {
    CHECK(transfer.phase != planner::Phase::kBalance);
    if (transfer.phase == planner::Phase::kScaleOut) CHECK_EQ(transfer.src, transfer.origin);
  }
}

void CheckPromises(const Problem& problem, const Planner& plan, const std::vector<Transfer>& all) {
  CheckTraits(plan, all);
  const Promises promises = PromisesOf(plan.chosen());
  if (promises.one_to_one) CheckOneToOne(problem.topology, all);
  if (promises.balanced) CheckBalance(problem.topology, problem.traffic.traffic, all);
  if (promises.own_nics) CheckOwnNics(all);
}

// Where the cost model's numbers suffice: it takes no NIC to be slower than a millionth of the fastest, and adds up
// bandwidths below 2^62.
bool IsPriced(const Topology& topology) {
  const int64_t fastest = topology.fastest_nic();
  return fastest < (int64_t{1} << 62) / topology.devices() &&
         std::none_of(
             topology.nic_bandwidths.begin(), topology.nic_bandwidths.end(),
             [=](int64_t rate) { return rate > 0 && rate <= fastest >> 20; });
}

// Nobody is worse off for not choosing, but for what looking at the others would have taken; and what is chosen goes
// round failed NICs. Where nothing leaves its server, all schedulers do the same.
void CheckChoice(const Problem& problem, Planner* plan, const std::vector<Transfer>& all) {
  constexpr double kRounding = 1e-6;
  constexpr double kMostSeconds = 1e9;  // beyond which prices need not be right
  const Topology& topology = problem.topology;
  const bool failed = topology.servers > 1 && AnyFailedNic(topology);
  if (failed) CheckRails(topology, all);
  if (plan->num_stages() == 0 || !IsPriced(topology) || plan->PredictedTime() > kMostSeconds) return;
  Planner taken(topology, plan->chosen(), problem.row_bytes);
  taken.Plan(problem.traffic.traffic.data());
  CHECK_LE(taken.PredictedTime(), plan->PredictedTime());
  for (const Scheduler scheduler : AllSchedulers()) {
    const bool considered = TraitsOf(scheduler).choosing == planner::Choosing::kConsidered;
    if (!considered && !PromisesOf(scheduler).never_cheapest) continue;
    if (failed && !GoesRoundFailedNics(scheduler)) continue;
    Planner other(topology, scheduler, problem.row_bytes);
    other.Plan(problem.traffic.traffic.data());
    const double looking = planner::ToSeconds(planner::GetSchedulerInfo(scheduler).pricing.Of(topology));
    CHECK_LE(taken.PredictedTime(), other.PredictedTime() * (1 + kRounding) + looking);
  }
}

// By server, rows that leave it and rows that enter it.
std::vector<int64_t> CrossingRows(const Topology& topology, const Matrix& traffic) {
  std::vector<int64_t> rows(topology.servers);
  const int32_t devices = topology.devices();
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      if (topology.server_of(i) == topology.server_of(j)) continue;
      rows[topology.server_of(i)] += traffic[static_cast<size_t>(i) * devices + j];
      rows[topology.server_of(j)] += traffic[static_cast<size_t>(i) * devices + j];
    }
  }
  return rows;
}

void CheckDelivery(const Problem& problem, const Planner& plan, const std::vector<Transfer>& all) {
  const Topology& topology = problem.topology;
  const Matrix& traffic = problem.traffic.traffic;
  const std::vector<int64_t> staging = StagingRows(plan);
  CheckShape(topology, all, plan.num_stages());
  CheckReplay(topology, traffic, all, staging);
  CheckReplay(topology, Transposed(topology, traffic), Reversed(all), staging);
  const std::vector<int64_t> crossing = CrossingRows(topology, traffic);
  for (int32_t device = 0; device < topology.devices(); ++device) {
    // No device could stage more than all that its server sends and receives; gaps may double that.
    CHECK_LE(staging[device], 2 * crossing[topology.server_of(device)]);
  }
}

// Whatever matchings a plan is given, it is as right; those that cover its traffic it takes as they are.
void CheckPlanWith(const Problem& problem, const planner::MatchingList& given, bool covers, Planner* plan) {
  plan->PlanWith(problem.traffic.traffic.data(), given);
  const std::vector<Transfer> all = AllTransfers(plan);
  CheckDelivery(problem, *plan, all);
  CheckPromises(problem, *plan, all);
  CheckAllTables(problem.traffic.traffic, plan, all);
  if (!covers || plan->matched().matchings == nullptr) return;
  CHECK(plan->matched().matchings->to == given.to);
  CHECK(plan->matched().matchings->weights == given.weights);
}

void CheckGivenMatchings(const Problem& problem, Planner* used) {
  const Matrix& traffic = problem.traffic.traffic;
  if (used->matched().matchings != nullptr) {
    const planner::MatchingList of_other_traffic = *used->matched().matchings;
    CheckPlanWith(problem, of_other_traffic, false, used);
  }
  used->Plan(traffic.data());
  if (used->matched().matchings == nullptr) return;
  const planner::MatchingList own = *used->matched().matchings;
  CheckPlanWith(problem, own, true, used);
}

// A planner with a past, of which the matrix it borrows changes in place and then lies elsewhere.
void CheckHistory(const Problem& problem, uint64_t digest) {
  Planner used(problem.topology, problem.scheduler, problem.row_bytes);
  Matrix borrowed = problem.before.traffic;
  used.Plan(borrowed.data());
  used.DeviceTransfers(problem.topology.devices() / 2);
  CheckGivenMatchings(problem, &used);
  borrowed = problem.traffic.traffic;
  used.Plan(borrowed.data());
  CHECK_EQ(DigestPlan(&used, false), digest);
  const Matrix moved = problem.traffic.traffic;
  used.Plan(moved.data());
  std::copy(problem.before.traffic.begin(), problem.before.traffic.end(), borrowed.begin());
  CHECK_EQ(DigestPlan(&used, true), digest);
}

}  // namespace

std::string CheckProblem(const Problem& problem) {
  const Trial trial;
  Planner plan(problem.topology, problem.scheduler, problem.row_bytes);
  plan.Plan(problem.traffic.traffic.data());
  std::vector<Transfer> all;
  const uint64_t digest = DigestPlan(&plan, true, &all);
  CheckDelivery(problem, plan, all);
  if (trial.failures() > 0) return trial.first();  // what follows looks things up by what the plan says
  CheckLists(&plan, all);
  CheckLoneDevices(problem, all);
  CheckAllTables(problem.traffic.traffic, &plan, all);
  CheckPromises(problem, plan, all);
  if (TraitsOf(problem.scheduler).choosing == planner::Choosing::kChooses) CheckChoice(problem, &plan, all);
  const double predicted = plan.PredictedTime();
  CHECK(std::isfinite(predicted));
  CHECK_GE(predicted, plan.LowerBound() * (1 - 1e-9));
  CheckHistory(problem, digest);
  return trial.first();
}

uint64_t DigestProblem(const Problem& problem) {
  Planner plan(problem.topology, problem.scheduler, problem.row_bytes);
  plan.Plan(problem.traffic.traffic.data());
  return DigestPlan(&plan, false);
}

}  // namespace fastjax::test
