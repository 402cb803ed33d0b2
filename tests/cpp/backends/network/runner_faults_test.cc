// Exchanges between processes that fail: everybody is told, nothing is touched afterwards, and what is waited for is
// named.
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/runner.h"
#include "exchange/status.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/loopback_transport.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

const char* const kPrefix = "exchange over axis 'x' (channel 7): ";
const Status kWhy = Status::Deadline("too late");

// One process a server, unless told otherwise, and every send waits for its receive.
struct Setting {
  Setting(int32_t servers, int32_t devices, Scheduler scheduler, uint64_t seed, int64_t row_bytes = 8,
          int32_t groups = 1, bool in_order = false, Owners owners = Owners::kServers)
      : random(seed), site(MakeSite(groups, servers * devices, kNoTimeoutMs, in_order ? nullptr : &random)) {
    options.topology = MakeTopology(servers, devices);
    options.scheduler = scheduler;
    options.row_bytes = row_bytes;
    LoopbackOptions loopback;
    loopback.processes = Deal(owners, devices, &random, site.get());
    loopback.eager_bytes = 0;
    loopback.seed = seed;
    processes = loopback.processes;
    network = std::make_unique<LoopbackNetwork>(loopback);
    network::Limits limits;
    limits.grace = std::chrono::milliseconds(30);
    exchange = std::make_unique<NetworkExchange>(network.get(), site, options.exchange, limits, limits);
    Renew();
  }

  void Renew() {
    rig = std::make_unique<Rig>(site, options,
                                Fill(options.topology, [&](int32_t, int32_t) { return 1 + random() % 9; }), &random);
  }

  Outcomes Start(int64_t run_id) {
    Outcomes outcomes(site->partitions());
    rig->StartAll(exchange.get(), run_id, outcomes);
    return outcomes;
  }

  // What the process's devices were told.
  Status Told(const Outcomes& outcomes, int32_t process) const {
    Status told;
    for (int32_t partition = 0; partition < site->partitions(); ++partition) {
      if (site->process_of[partition] == process) told = outcomes.status(partition);
    }
    return told;
  }

  // Memory that a failed exchange still used would be missed: sanitizers see it.
  void CheckNextIsRight() {
    network->WaitQuiet();
    Renew();
    rig->CheckRun(exchange.get(), 1'000'000, false);
    CHECK_EQ(network->OpenRequests(), 0);
  }

  std::mt19937_64 random;
  std::shared_ptr<CallSite> site;
  RigOptions options;
  int32_t processes = 0;
  std::unique_ptr<LoopbackNetwork> network;
  std::unique_ptr<NetworkExchange> exchange;
  std::unique_ptr<Rig> rig;
};

// Everybody gives up, after any number of steps, while rows are about to move.
TEST(GiveUpAtAnyMoment) {
  for (uint64_t round = 0; round < 60; ++round) {
    Setting setting(3, 2, round % 2 == 0 ? Scheduler::kFast : Scheduler::kDirect, round);
    setting.exchange->SetTicking(false);  // else whoever gives up first might disconnect from those who have not yet
    const Outcomes outcomes = setting.Start(1);
    for (uint64_t i = 0; i < round % 12; ++i) setting.network->RunOn(0, [] {});
    setting.network->Hold(true);
    const bool ended = outcomes.all_ok();
    for (int32_t process = 0; process < setting.processes; ++process) {
      setting.exchange->Fail(process, kWhy);
      setting.exchange->Fail(process, Status::Internal("the second reason does not count"));
    }
    setting.exchange->SetTicking(true);
    outcomes.WaitAll();
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK(outcomes.status(i).ok() || outcomes.status(i).message == "too late");
    }
    CHECK(setting.rig->GuardsAreWhole());
    if (ended) CHECK(setting.rig->IsRight());
    setting.rig = nullptr;
    setting.network->Hold(false);
    setting.CheckNextIsRight();
  }
}

// In the same task that started it, before any request ends; also while the pool copies.
TEST(GiveUpAtOnce) {
  for (const int64_t row_bytes : {8, 20'000}) {
    Setting setting(2, 4, Scheduler::kFast, 1, row_bytes);
    setting.exchange->SetStarted([&](int32_t process) { setting.exchange->FailHere(process, kWhy); });
    const Outcomes outcomes = setting.Start(1);
    outcomes.WaitAll();
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK(outcomes.status(i).code == Code::kDeadlineExceeded);
      CHECK_EQ(outcomes.status(i).message, "too late");
    }
    CHECK(setting.rig->GuardsAreWhole());
    setting.rig = nullptr;
    setting.exchange->SetStarted(nullptr);
    setting.CheckNextIsRight();
  }
}

const std::string kWaitingForOne =
    "stage 1 of 1: 1 message to receive from process 1 (host b): device 1; "
    "stage 1 of 1: 1 message to send to process 1 (host b): device 1";

// Until 0 and 2 have ended what they have with each other.
void WaitUntilOneIsMissed(Setting* setting) {
  for (const int32_t process : {0, 2}) {
    while (setting->exchange->Waiting(process) != kWaitingForOne) {
    }
  }
}

// A process that is silent: the others know whom they wait for, and get their memory back only when they have
// disconnected from it.
TEST(Silence) {
  Setting setting(3, 1, Scheduler::kDirect, 2, 8, 1, true);
  setting.exchange->SetTicking(false);
  setting.network->Cut(1);
  const Outcomes outcomes = setting.Start(1);
  WaitUntilOneIsMissed(&setting);
  for (const int32_t process : {0, 1, 2}) setting.exchange->Fail(process, kWhy);
  for (int32_t i = 0; i < 200; ++i) setting.network->RunOn(0, [] {});
  CHECK_EQ(setting.exchange->Running(0), 1);
  CHECK_EQ(setting.exchange->Failure(0), "too late");
  CHECK(!outcomes.called(0) && !outcomes.called(2));
  CHECK_EQ(setting.network->disconnects(), 0);
  setting.exchange->SetTicking(true);
  outcomes.WaitAll();
  for (int32_t i = 0; i < 3; ++i) CHECK_EQ(outcomes.status(i).message, "too late");
  CHECK_EQ(setting.network->OpenRequests(), 0);
  CHECK_EQ(setting.network->disconnects(), 4);  // of 0 and 2 from 1, and of 1 from both
  CHECK_EQ(setting.exchange->Waiting(0), "");
}

// The same, with a question before: what does not answer is left with the exchange, what answers is kept.
TEST(Probes) {
  Setting setting(3, 1, Scheduler::kDirect, 2, 8, 1, true);
  setting.exchange->SetTicking(false);
  setting.network->Cut(1);
  const Outcomes outcomes = setting.Start(1);
  WaitUntilOneIsMissed(&setting);
  for (int32_t i = 0; i < 2; ++i) {  // nothing has moved since the first time
    for (const int32_t process : {0, 1, 2}) setting.exchange->Probe(process);
  }
  CHECK_EQ(setting.network->probes(), 4);  // of 1 by 0 and 2, and of both by 1
  CHECK_EQ(setting.network->disconnects(), 0);
  for (const int32_t process : {0, 1, 2}) setting.exchange->Fail(process, kWhy);
  outcomes.WaitAll();
  CHECK_EQ(setting.network->disconnects(), 4);
  CHECK_EQ(setting.network->OpenRequests(), 0);

  Setting slow(2, 1, Scheduler::kDirect, 3, 8, 1, true);
  slow.exchange->SetTicking(false);
  slow.network->Hold(true);
  const Outcomes late = slow.Start(1);
  while (slow.network->OpenRequests() < 4) {
  }
  for (const int32_t process : {0, 1}) slow.exchange->Probe(process);
  CHECK_EQ(slow.network->probes(), 2);
  for (const int32_t process : {0, 1}) slow.exchange->Fail(process, kWhy);
  for (int32_t i = 0; i < 50; ++i) slow.network->RunOn(0, [] {});
  CHECK_EQ(slow.network->disconnects(), 0);
  slow.exchange->SetTicking(true);
  late.WaitAll();
}

// A process that dies: those that wait for it are told at once, and end without anybody's help.
TEST(Death) {
  for (uint64_t round = 0; round < 20; ++round) {
    Setting setting(3, 2, round % 2 == 0 ? Scheduler::kFast : Scheduler::kSpreadout, 10 + round);
    setting.network->Hold(round % 4 < 2);
    const Outcomes outcomes = setting.Start(1);
    for (uint64_t i = 0; i < round; ++i) setting.network->RunOn(0, [] {});
    setting.network->Kill(2);
    setting.network->Hold(false);
    for (const int32_t process : {2, 0, 1}) {
      setting.exchange->Fail(process, kWhy);
    }
    outcomes.WaitAll();
    CHECK(setting.rig->GuardsAreWhole());
    CHECK_EQ(setting.network->OpenRequests(), 0);
  }
  Setting setting(2, 1, Scheduler::kDirect, 3);
  setting.network->Hold(true);
  const Outcomes outcomes = setting.Start(1);
  while (setting.network->OpenRequests() < 4) setting.network->RunOn(0, [] {});
  setting.network->Kill(1);
  setting.exchange->Fail(1, kWhy);
  outcomes.WaitAll();
  const Status told = setting.Told(outcomes, 0);
  CHECK(told.code == Code::kUnavailable);
  CHECK_CONTAINS(told.message, "process 1 (host b) is gone: killed");
}

// A message that is not as long as the plan says.
TEST(WrongLength) {
  for (const int64_t damage : {-3, 5}) {
    Setting setting(2, 1, Scheduler::kFast, 4, 8, 1, true);
    setting.network->DamageNext(1, damage);
    const Outcomes outcomes = setting.Start(1);
    outcomes.Wait(0);
    const Status told = setting.Told(outcomes, 0);
    CHECK(told.code == Code::kInternal);
    const std::string text = told.message;
    CHECK_EQ(text.find(kPrefix + std::string("stage 1 of ")), 0U);
    CHECK_CONTAINS(text, ": device 0 could not receive from device 1 of process 1 (host b): got ");
    CHECK_CONTAINS(text, " bytes instead of ");
    setting.exchange->Fail(1, kWhy);
    outcomes.WaitAll();
    CHECK(setting.rig->GuardsAreWhole());
  }
}

// One process gives up and throws away what comes for it: its senders need not be disconnected.
TEST(DroppedRows) {
  Setting setting(2, 2, Scheduler::kDirect, 5, 8, 1, true);
  const Matrix one_way = Fill(setting.options.topology, [](int32_t i, int32_t j) { return i >= 2 && j < 2 ? 7 : 0; });
  setting.rig = std::make_unique<Rig>(setting.site, setting.options, one_way, &setting.random);
  setting.exchange->SetTicking(false);
  setting.network->Hold(true);  // before anything starts: nothing meets that has not been cancelled
  setting.exchange->SetStarted([&](int32_t process) {
    if (process == 0) setting.exchange->FailHere(0, kWhy);
  });
  const Outcomes outcomes = setting.Start(1);
  setting.network->Hold(false);
  outcomes.WaitAll();
  CHECK_EQ(setting.Told(outcomes, 0).message, "too late");
  CHECK(setting.Told(outcomes, 1).ok());
  CHECK_EQ(setting.network->disconnects(), 0);
}

TEST(Waiting) {
  CHECK_EQ(network::Runner().Waiting(), "nothing");
  {
    Setting setting(8, 1, Scheduler::kDirect, 6, 8, 1, true);
    setting.network->Hold(true);
    const Outcomes outcomes = setting.Start(1);
    while (setting.network->OpenRequests() < 8 * 14) {
    }
    const std::string text = setting.exchange->Waiting(3);
    CHECK_CONTAINS(text, "1 message to receive from process 0 (host a): device 0; ");
    CHECK_CONTAINS(text, "process 5 (host f): device 5; ");
    CHECK_CONTAINS(text, "; and 8 more");
    setting.network->Hold(false);
    outcomes.WaitAll();
    CHECK(outcomes.all_ok());
  }
  {
    Setting setting(2, 2, Scheduler::kDirect, 7, 8, 2, true);
    setting.network->Hold(true);
    const Outcomes outcomes = setting.Start(1);
    while (setting.network->OpenRequests() < 2 * 2 * 8) {
    }
    const std::string text = setting.exchange->Waiting(0);
    CHECK_NE(text.find("stage 1 of 1: 4 messages to receive from process 1 (host b): devices 2, 3; stage 1 of 1: 4 "
                       "messages to send to process 1 (host b): devices 2, 3 (group 1)"),
             std::string::npos);
    setting.network->Hold(false);
    outcomes.WaitAll();
  }
  {
    // What the pool copies is known to have ended on the transport's thread only, which is here.
    Setting setting(2, 2, Scheduler::kFast, 8, 60'000, 1, true);
    std::string text;
    setting.exchange->SetStarted([&](int32_t process) {
      if (process == 0) text = setting.exchange->WaitingHere(0);
    });
    const Outcomes outcomes = setting.Start(1);
    outcomes.WaitAll();
    CHECK_CONTAINS(text, " copy jobs inside this process");
  }
}

}  // namespace
}  // namespace fastjax::test
