// The checks of plans themselves: each notices the faults that it is there for.
#include "support/replay.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "shrink.h"
#include "support/check.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;

using Transfers = std::vector<Transfer>;

// A plan with every phase, of which faults are made.
struct Sound {
  Topology topology = MakeTopology(3, 3);
  Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return (i * 7 + j * 5) % 23; });
  Transfers transfers;
  std::vector<int64_t> staging;
  int32_t stages = 0;

  explicit Sound(Scheduler scheduler = Scheduler::kFast) {
    Planner plan(topology, scheduler, 1 << 20);
    plan.Plan(traffic.data());
    transfers = AllTransfers(&plan);
    staging = StagingRows(plan);
    stages = plan.num_stages();
  }
};

long Failures(const std::function<void()>& check) {
  const Trial trial;
  check();
  return trial.failures();
}

TEST(Sound) {
  for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kSpreadout}) {
    const Sound sound(scheduler);
    CheckShape(sound.topology, sound.transfers, sound.stages);
    CheckReplay(sound.topology, sound.traffic, sound.transfers, sound.staging);
    CheckOneToOne(sound.topology, sound.transfers);
    if (scheduler == Scheduler::kFast) CheckBalance(sound.topology, sound.traffic, sound.transfers);
  }
}

size_t First(const Transfers& transfers, Phase phase) {
  const auto found = std::find_if(transfers.begin(), transfers.end(),
                                  [=](const Transfer& transfer) { return transfer.phase == phase; });
  CHECK(found != transfers.end());
  return static_cast<size_t>(found - transfers.begin());
}

using Fault = std::function<void(Transfer*)>;

// A fault in one transfer of the phase is noticed, whichever of its staging rows it concerns.
void Noticed(const char* name, Phase phase, const Fault& fault) {
  const Context context(std::string(name) + ", phase " + std::to_string(static_cast<int>(phase)));
  Sound sound;
  fault(&sound.transfers[First(sound.transfers, phase)]);
  CHECK_GT(Failures([&] { CheckReplay(sound.topology, sound.traffic, sound.transfers, sound.staging); }), 0);
}

TEST(FaultsInOneTransfer) {
  for (const Phase phase : {Phase::kLocal, Phase::kBalance, Phase::kScaleOut, Phase::kRedistribute}) {
    Noticed("no rows", phase, [](Transfer* t) { t->rows = 0; });
    Noticed("one row less", phase, [](Transfer* t) { --t->rows; });
    Noticed("one row more", phase, [](Transfer* t) { ++t->rows; });
    Noticed("rows before the block", phase, [](Transfer* t) { t->first_row = -1; });
    Noticed("other rows", phase, [](Transfer* t) { t->first_row += 1; });
    Noticed("another origin", phase, [](Transfer* t) { t->origin = (t->origin + 1) % 9; });
    Noticed("another target", phase, [](Transfer* t) { t->target = (t->target + 1) % 9; });
    Noticed("no such origin", phase, [](Transfer* t) { t->origin = 9; });
    Noticed("no such target", phase, [](Transfer* t) { t->target = -1; });
    Noticed("no such source", phase, [](Transfer* t) { t->src = 9; });
    Noticed("no such destination", phase, [](Transfer* t) { t->dst = -1; });
  }
  for (const Phase phase : {Phase::kBalance, Phase::kRedistribute}) {
    Noticed("another stage", phase, [](Transfer* t) { ++t->stage; });
  }
  Noticed("another holder", Phase::kBalance, [](Transfer* t) { t->dst = t->dst == 0 ? 1 : 0; });
  Noticed("output of another device", Phase::kBalance, [](Transfer* t) { t->dst_row = Transfer::kInPlace; });
  Noticed("operand of another device", Phase::kRedistribute, [](Transfer* t) { t->src_row = Transfer::kInPlace; });
  Noticed("staging that is not there", Phase::kBalance, [](Transfer* t) { t->dst_row = 1 << 20; });
  Noticed("staging before the first row", Phase::kBalance, [](Transfer* t) { t->dst_row = -2; });
  Noticed("staging that was not written", Phase::kRedistribute, [](Transfer* t) { t->src_row = 1 << 20; });
  Noticed("staging of other rows", Phase::kRedistribute, [](Transfer* t) { ++t->src_row; });
}

void NoticedInOrder(const char* name, const std::function<void(Transfers*)>& fault) {
  const Context context(name);
  Sound sound;
  fault(&sound.transfers);
  CHECK_GT(Failures([&] { CheckReplay(sound.topology, sound.traffic, sound.transfers, sound.staging); }), 0);
}

TEST(FaultsInTheWhole) {
  for (const Phase phase : {Phase::kLocal, Phase::kBalance, Phase::kScaleOut, Phase::kRedistribute}) {
    NoticedInOrder("a transfer too few", [=](Transfers* all) { all->erase(all->begin() + First(*all, phase)); });
    NoticedInOrder("a transfer twice", [=](Transfers* all) { all->push_back((*all)[First(*all, phase)]); });
  }
  NoticedInOrder("reads before it is written", [](Transfers* all) {
    const size_t first = First(*all, Phase::kRedistribute);
    std::rotate(all->begin(), all->begin() + first, all->begin() + first + 1);
  });
  NoticedInOrder("nothing at all", [](Transfers* all) { all->clear(); });
}

// Rows that go between servers twice are delivered once all the same.
TEST(CrossesTwice) {
  const Topology topology = MakeTopology(2, 1);
  const Matrix traffic = {0, 4, 0, 0};
  const Transfers there_and_back = {{Phase::kScaleOut, 0, 0, 1, 0, 1, 0, 4, Transfer::kInPlace, 0},
                                    {Phase::kScaleOut, 0, 1, 0, 0, 1, 0, 4, 0, 0},
                                    {Phase::kScaleOut, 0, 0, 1, 0, 1, 0, 4, 0, Transfer::kInPlace}};
  CHECK_GT(Failures([&] { CheckReplay(topology, traffic, there_and_back, {4, 4}); }), 0);
}

// Consecutive staging rows may come and go by different transfers; ranges are split where they must be.
TEST(RangesAreSplit) {
  const Topology topology = MakeTopology(2, 2);
  Matrix traffic(16);
  traffic[3] = 9;  // 0 -> 3
  Transfers transfers = {{Phase::kBalance, 0, 0, 1, 0, 3, 4, 5, Transfer::kInPlace, 14},
                         {Phase::kBalance, 0, 0, 1, 0, 3, 0, 4, Transfer::kInPlace, 10},
                         {Phase::kScaleOut, 0, 1, 3, 0, 3, 3, 3, 13, Transfer::kInPlace},
                         {Phase::kScaleOut, 0, 1, 3, 0, 3, 6, 3, 16, Transfer::kInPlace},
                         {Phase::kScaleOut, 0, 1, 3, 0, 3, 0, 3, 10, Transfer::kInPlace}};
  const std::vector<int64_t> staging = {0, 19, 0, 0};
  CheckReplay(topology, traffic, transfers, staging);
  const auto noticed = [&](const char* name, size_t transfer, const Fault& fault) {
    const Context context(name);
    Transfers wrong = transfers;
    fault(&wrong[transfer]);
    CHECK_GT(Failures([&] { CheckReplay(topology, traffic, wrong, staging); }), 0);
  };
  noticed("written twice, behind", 1, [](Transfer* t) { t->dst_row = 11; });
  noticed("written twice, before", 0, [](Transfer* t) { t->dst_row = 13; });
  noticed("read twice", 4, [](Transfer* t) { t->rows = 4; });
  noticed("left in staging", 3, [](Transfer* t) { t->rows = 2; });
  noticed("read behind the end", 3, [](Transfer* t) { t->rows = 4; });
  noticed("read before the first", 4, [](Transfer* t) { t->src_row = 9; });
}

TEST(Shape) {
  const auto noticed = [](const char* name, Phase phase, const Fault& fault) {
    const Context context(std::string(name) + ", phase " + std::to_string(static_cast<int>(phase)));
    Sound sound;
    fault(&sound.transfers[First(sound.transfers, phase)]);
    CHECK_GT(Failures([&] { CheckShape(sound.topology, sound.transfers, sound.stages); }), 0);
  };
  for (const Phase phase : {Phase::kLocal, Phase::kBalance, Phase::kScaleOut, Phase::kRedistribute}) {
    noticed("no such stage", phase, [](Transfer* t) { t->stage = 1 << 20; });
    noticed("no such stage", phase, [](Transfer* t) { t->stage = -2; });
    noticed("another phase", phase,
            [](Transfer* t) { t->phase = static_cast<Phase>((static_cast<int>(t->phase) + 1) % 4); });
    noticed("no such device", phase, [](Transfer* t) { t->src = 9; });
    noticed("source in another server", phase, [](Transfer* t) { t->src = (t->src + 3) % 9; });
    noticed("destination in another server", phase, [](Transfer* t) { t->dst = (t->dst + 3) % 9; });
    if (phase != Phase::kRedistribute)
      noticed("origin in another server", phase, [](Transfer* t) { t->origin = (t->origin + 3) % 9; });
    noticed("target in another server", phase, [](Transfer* t) { t->target = (t->target + 3) % 9; });
  }
  noticed("origin in the target's server", Phase::kRedistribute, [](Transfer* t) { t->origin = t->target; });
  noticed("to itself", Phase::kBalance, [](Transfer* t) { t->dst = t->src; });
  noticed("balances another's rows", Phase::kBalance, [](Transfer* t) { t->src = t->src == 0 ? 1 : 0; });
  noticed("ends with another device", Phase::kRedistribute, [](Transfer* t) { t->dst_row = 0; });
  Sound sound;
  CHECK_GT(Failures([&] { CheckShape(sound.topology, sound.transfers, sound.stages + 1); }), 0);
  CHECK_GT(Failures([&] { CheckShape(sound.topology, sound.transfers, sound.stages - 1); }), 0);
  std::swap(sound.transfers.front(), sound.transfers.back());
  CHECK_GT(Failures([&] { CheckShape(sound.topology, sound.transfers, sound.stages); }), 0);
}

TEST(OneToOne) {
  const Sound direct(Scheduler::kDirect);
  CHECK_GT(Failures([&] { CheckOneToOne(direct.topology, direct.transfers); }), 0);
  const auto only = [&](auto keep) {
    Transfers some;
    std::copy_if(direct.transfers.begin(), direct.transfers.end(), std::back_inserter(some),
                 [&](const Transfer& t) { return t.phase == Phase::kScaleOut && keep(t); });
    return Failures([&] { CheckOneToOne(direct.topology, some); });
  };
  CHECK_GT(only([](const Transfer& t) { return t.src == 0; }), 0);
  CHECK_GT(only([](const Transfer& t) { return t.dst == 0; }), 0);
  CHECK_EQ(only([](const Transfer& t) { return (t.src + 3) % 9 == t.dst; }), 0);
}

// Rails that carry so many of the rows that device 0 sends to device 2, however they came there.
bool Carries(int64_t first, int64_t second, const std::vector<int64_t>& nics) {
  Topology topology = MakeTopology(2, 2);
  topology.nic_bandwidths = nics;
  const Matrix traffic = Fill(topology, [=](int32_t i, int32_t j) { return i == 0 && j == 2 ? first + second : 0; });
  Transfers transfers = {{Phase::kScaleOut, 0, 0, 2, 0, 2, 0, first, Transfer::kInPlace, Transfer::kInPlace}};
  if (second > 0) transfers.push_back({Phase::kScaleOut, 0, 1, 3, 0, 2, first, second, 0, 0});
  return Failures([&] { CheckBalance(topology, traffic, transfers); }) == 0;
}

TEST(Balance) {
  CHECK(Carries(5, 5, {}));
  CHECK(Carries(5, 6, {}));
  CHECK(Carries(6, 5, {}));
  CHECK(!Carries(6, 4, {}));
  CHECK(!Carries(10, 0, {}));
  CHECK(!Carries(6, 4, {7, 7, 7, 7}));
  CHECK(Carries(20, 10, {4, 2, 4, 2}));
  CHECK(Carries(21, 9, {4, 2, 4, 2}));  // within a row
  CHECK(!Carries(22, 8, {4, 2, 4, 2}));
  CHECK(Carries(10, 10, {4, 2, 2, 4}));  // the slower end of a rail counts
  CHECK(!Carries(13, 7, {4, 2, 2, 4}));
  CHECK(Carries(30, 0, {4, 0, 4, 2}));
  CHECK(Carries(30, 0, {4, 2, 4, 0}));
  CHECK(!Carries(29, 1, {4, 2, 4, 0}));
  constexpr int64_t kRate = int64_t{1} << 60;
  CHECK(Carries(2 * kRate, kRate, {2 * kRate, kRate, 2 * kRate, 3 * kRate}));
}

// One row from server 0 to server 1, by these two devices.
bool MayCarry(int32_t src, int32_t dst, const std::vector<int64_t>& nics) {
  Topology topology = MakeTopology(2, 3);
  topology.nic_bandwidths = nics;
  const Transfers transfers = {{Phase::kScaleOut, 0, src, dst, src, dst, 0, 1, Transfer::kInPlace, Transfer::kInPlace}};
  return Failures([&] { CheckRails(topology, transfers); }) == 0;
}

TEST(Rails) {
  CHECK(MayCarry(0, 3, {}));
  CHECK(MayCarry(2, 5, {}));
  CHECK(!MayCarry(0, 4, {}));
  CHECK(MayCarry(0, 3, {1, 0, 5, 1, 5, 0}));
  CHECK(!MayCarry(2, 5, {1, 0, 5, 1, 5, 0}));  // a failed NIC at one end
  CHECK(!MayCarry(2, 4, {1, 0, 5, 1, 5, 0}));
  CHECK(MayCarry(2, 4, {1, 0, 5, 0, 5, 0}));  // no rail has two ends
  CHECK(!MayCarry(0, 4, {1, 0, 5, 0, 5, 0}));
  CHECK(!MayCarry(2, 3, {1, 0, 5, 0, 5, 0}));
}

// What is left of a problem is what makes it wrong.
TEST(Shrink) {
  Problem problem;
  problem.topology = MakeTopology(2, 2);
  problem.traffic.traffic = Fill(problem.topology, [](int32_t i, int32_t j) { return 100 + i * 4 + j; });
  problem.before = problem.traffic;
  const auto wrong = [](const Problem& p) { return p.traffic.traffic[6] >= 20 && p.traffic.traffic[9] > 0; };
  const Problem small = Shrink(problem, wrong);
  Matrix expected(16);
  expected[6] = 26;
  expected[9] = 1;
  CHECK(small.traffic.traffic == expected);
  CHECK(small.before.traffic == Matrix(16));
}

}  // namespace
}  // namespace fastjax::test
