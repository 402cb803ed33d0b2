// The network backend whole, over transports inside one process: processes meet, plan, move rows, and hear of failures.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/network/network_backend.h"
#include "planner/planner.h"
#include "rendezvous/process_launch.h"
#include "runtime/recorder.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/exchange_rig.h"
#include "support/job_rig.h"
#include "support/layout.h"
#include "support/loopback_transport.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

TEST(Exchanges) {
  std::mt19937_64 random(11);
  int64_t spread = 0;
  for (int trial = 0; trial < 60; ++trial) {
    RigOptions options = DrawOptions(&random);
    if (random() % 8 == 0) options.row_bytes = 0;
    const auto groups = static_cast<int32_t>(1 + random() % 2);
    const auto site = MakeSite(groups, options.topology.devices(), kNoTimeoutMs, &random);
    const int32_t count =
        Deal(static_cast<Owners>(random() % 4), options.topology.devices_per_server, &random, site.get());
    spread += count > 1 ? 1 : 0;
    const Context context(Name(options) + ", " + std::to_string(count) + " processes");
    Processes processes(count, random());
    Everywhere exchange(&processes, site, options);
    int64_t launch_id = 0;
    for (const Case& test_case : SomeCases(options.topology, random())) {
      const Context inner(test_case.name);
      Rig rig(site, options, test_case.traffic, &random);
      rig.CheckRun(&exchange, launch_id++ / 2, true);  // every run comes by twice
    }
    CHECK_EQ(processes.network.OpenRequests(), 0);
  }
  CHECK_GE(spread, 30);
}

// A job of three processes with two devices each, one exchange in it.
struct Setting {
  explicit Setting(int64_t timeout_ms = kNoTimeoutMs) {
    options.topology = MakeTopology(3, 2);
    options.row_bytes = 800;
    site = MakeSite(1, 6, timeout_ms, &random);
    Deal(Owners::kServers, 2, &random, site.get());
    processes = std::make_unique<Processes>(3, 5);
    exchange = std::make_unique<Everywhere>(processes.get(), site, options);
  }
  std::unique_ptr<Rig> MakeRig() {
    return std::make_unique<Rig>(site, options, MakeCases(options.topology, 3)[2].traffic, &random);
  }

  std::mt19937_64 random{3};
  RigOptions options;
  std::shared_ptr<CallSite> site;
  std::unique_ptr<Processes> processes;
  std::unique_ptr<Everywhere> exchange;
};

// Every process counts for itself.
TEST(Figures) {
  Setting setting;
  auto rig = setting.MakeRig();
  Records::Get().Reset();
  Records::Collect(true);
  rig->CheckRun(setting.exchange.get(), 1, true);
  Records::Collect(false);
  const std::vector<SiteReport> reports = Records::Get().Report();
  CHECK_EQ(reports.size(), 3U);
  for (const SiteReport& report : reports) CHECK_EQ(report.statistics.exchanges, 1);
}

// A device that cannot take part: those of its process, and of the others, need not wait for the time-out. Before its
// process knows of it, the others have come, or come later.
TEST(Refusal) {
  for (const int32_t last : {0, 1, 2}) {
    Setting setting;
    auto rig = setting.MakeRig();
    const Outcomes outcomes(6);
    for (const int32_t process : {(last + 1) % 3, (last + 2) % 3, last}) {
      bool first = true;
      for (int32_t p = 0; p < 6; ++p) {
        if (setting.site->process_of[p] != process) continue;
        if (process == 1 && std::exchange(first, false)) {
          setting.exchange->FailGroup(1, p, Status::Internal("no room"), outcomes.For(p));
        } else {
          rig->Start(setting.exchange.get(), 1, p, outcomes.For(p));
        }
      }
      setting.processes->network.WaitQuiet();
    }
    outcomes.WaitAll();
    for (int32_t p = 0; p < 6; ++p) {
      CHECK_CONTAINS(outcomes.status(p).message, " cannot take part: no room");
      CHECK_EQ(Contains(outcomes.status(p).message, "process 1 (host b) gave up: "), setting.site->process_of[p] != 1);
    }
    CHECK(rig->IsUntouched());
    auto next = setting.MakeRig();
    next->CheckRun(setting.exchange.get(), 2, true);
  }
}

// The plan calls of a job: every process brings its devices' counts, and gets their tables.
struct PlanCalls {
  PlanCalls(const Setting& setting, const std::function<PlanFunction(int32_t process)>& plan) : site(*setting.site) {
    for (const auto& backend : setting.processes->backends) {
      counts.push_back(backend->OpenCounts(setting.site, plan(static_cast<int32_t>(counts.size()))));
    }
  }
  Outcomes Run(int64_t run, const std::function<CountsArgs(int32_t partition)>& args) {
    Outcomes outcomes(site.partitions());
    for (int32_t p = 0; p < site.partitions(); ++p) {
      counts[site.process_of[p]]->Start(run, p, args(p), outcomes.For(p));
    }
    outcomes.WaitAll();
    return outcomes;
  }

  const CallSite& site;
  std::vector<std::shared_ptr<fastjax::Counts>> counts;
};

// Every device gets the sizes of all, which may be any integers where nothing is planned.
TEST(Gathering) {
  Setting setting;
  PlanCalls calls(setting, [](int32_t) { return PlanFunction(); });
  std::vector<std::vector<int32_t>> sizes(6), gathered(6, std::vector<int32_t>(6 * 12));
  std::vector<int32_t> expected;
  for (int32_t position = 0; position < 6; ++position) {
    std::vector<int32_t>& own = sizes[setting.site->partition(0, position)];
    for (int32_t i = 0; i < 12; ++i) own.push_back(static_cast<int32_t>(setting.random() % 9) - 4);
    expected.insert(expected.end(), own.begin(), own.end());
  }
  const auto args = [&](int32_t p) {
    return CountsArgs{{sizes[p].data(), 12, IntKind::kS32}, nullptr, nullptr, gathered[p].data()};
  };
  CHECK(calls.Run(1, args).all_ok());
  for (const std::vector<int32_t>& of_one : gathered) CHECK(of_one == expected);
}

// Counts that are wrong are found by every process, in the same words. What goes wrong while one of them plans is its
// own: the others hear of it, or have planned before they could.
TEST(RefusedPlanning) {
  Setting setting;
  const std::vector<int64_t> fine(6, 1), negative = {1, 1, -3, 1, 1, 1};
  PlanCalls calls(setting, [](int32_t process) {
    return [process](const int64_t*, const std::vector<LocalTable>&, bool* made) {
      *made = true;
      return process == 1 ? Status::Internal("no room for a plan") : Status::Ok();
    };
  });
  const auto args_of = [&](int32_t wrong) {
    return [&, wrong](int32_t p) {
      const std::vector<int64_t>& sizes = p == wrong ? negative : fine;
      return CountsArgs{{sizes.data(), static_cast<int64_t>(sizes.size()), IntKind::kS64}};
    };
  };
  const int32_t wrong = 4;
  const std::string name = setting.site->DeviceName(0, setting.site->position_of[wrong]);
  const Outcomes refused = calls.Run(1, args_of(wrong));
  for (int32_t p = 0; p < refused.count(); ++p) {
    CHECK(refused.status(p).code == Code::kInvalidArgument);
    CHECK_CONTAINS(refused.status(p).message, "on " + name + ", send_sizes[2] = -3; a size must be 0 or more.");
  }
  const Outcomes failed = calls.Run(2, args_of(-1));
  for (int32_t p = 0; p < failed.count(); ++p) {
    if (setting.site->process_of[p] == 1) {
      CHECK(failed.status(p).code == Code::kInternal);
      CHECK_CONTAINS(failed.status(p).message, "no room for a plan");
    } else if (!failed.status(p).ok()) {
      CHECK_CONTAINS(failed.status(p).message, "process 1 (host b) gave up: ");
      CHECK_CONTAINS(failed.status(p).message, "no room for a plan");
    }
  }
}

// A process that cannot even describe what its devices bring tells the others; and so does one without a job.
TEST(NothingToTell) {
  struct OneLaunch final : ProcessLaunch<CountsArgs> {
    OneLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Recorder> recorder, int)
        : ProcessLaunch(std::move(site), std::move(recorder)) {
      throw std::bad_alloc();
    }
    Status Prepare(bool*) override { return Status::Ok(); }
    LaunchSummary summary() const override { return {}; }
  };
  Setting setting;
  const std::vector<int64_t> sizes(6, 1);
  const auto plan = [](const int64_t*, const std::vector<LocalTable>&, bool*) { return Status::Ok(); };
  std::vector<std::shared_ptr<fastjax::Counts>> counts;
  for (const auto& backend : setting.processes->backends) counts.push_back(backend->OpenCounts(setting.site, plan));
  const auto start = [&](int64_t run, const Outcomes& outcomes, int32_t process, int64_t length) {
    for (int32_t p = 0; p < 6; ++p) {
      if (setting.site->process_of[p] != process) continue;
      counts[process]->Start(run, p, {{sizes.data(), length, IntKind::kS64}}, outcomes.For(p));
    }
  };
  const Outcomes undescribed(6);
  for (const int32_t process : {0, 1, 2}) start(1, undescribed, process, process == 1 ? int64_t{1} << 61 : 6);
  undescribed.WaitAll();
  for (int32_t p = 0; p < 6; ++p) {
    CHECK(!undescribed.status(p).ok());
    CHECK_EQ(Contains(undescribed.status(p).message, "process 1 (host b) gave up: "), setting.site->process_of[p] != 1);
  }
  // As in a job, all processes have made the call site once more.
  counts[1] = nullptr;
  for (const int32_t process : {0, 2})
    counts[process] = setting.processes->backends[process]->OpenCounts(setting.site, plan);
  const auto entrance =
      OpenRendezvous<ProcessOperation<OneLaunch, int>>(setting.processes->stations[1], setting.site, "planning",
                                                       std::make_shared<Recorder>(setting.site, SiteKind{}), 0);
  const Outcomes without(6);
  for (const int32_t process : {0, 2}) start(2, without, process, 6);
  for (int32_t p = 0; p < 6; ++p) {
    if (setting.site->process_of[p] == 1) entrance->Start(2, p, {}, without.For(p));
  }
  without.WaitAll();
  for (int32_t p = 0; p < 6; ++p) CHECK_CONTAINS(without.status(p).message, "bad_alloc");
}

// A program with other shapes in one process: nothing lands where there is no room for it.
TEST(OtherShapes) {
  Setting setting;
  RigOptions larger = setting.options;
  larger.row_bytes *= 2;
  auto rig = setting.MakeRig();
  Rig other(setting.site, larger, MakeCases(setting.options.topology, 3)[3].traffic, &setting.random);
  const Outcomes outcomes(6);
  for (const int32_t process : {0, 1, 2}) {
    (process == 1 ? &other : rig.get())->StartAll(setting.exchange.get(), 1, outcomes, process);
  }
  outcomes.WaitAll();
  for (int32_t p = 0; p < 6; ++p) {
    CHECK(outcomes.status(p).code == Code::kInvalidArgument);
    CHECK_CONTAINS(outcomes.status(p).message, "other shapes or another type");
  }
  CHECK(rig->IsUntouched());
  CHECK(other.IsUntouched());
}

// Rows that take longer than the time-out are not stuck while they move.
TEST(Slow) {
  Setting setting(1000);
  auto rig = setting.MakeRig();
  setting.processes->network.Hold(true);
  setting.processes->network.Crawl(true);
  const Outcomes outcomes(6);
  rig->StartAll(setting.exchange.get(), 1, outcomes);
  std::this_thread::sleep_for(std::chrono::milliseconds{2000});
  for (int32_t p = 0; p < 6; ++p) CHECK(!outcomes.called(p));
  setting.processes->network.Hold(false);
  rig->CheckEnd(outcomes);
}

// A process ends while it waits for the others: its devices are told, whose program could not end otherwise, and so are
// the others, whether they had come or come later; and whoever comes afterwards.
TEST(ClosedBeforeMet) {
  Setting setting;
  auto rig = setting.MakeRig();
  const Outcomes outcomes(6);
  for (const int32_t process : {0, 1}) rig->StartAll(setting.exchange.get(), 1, outcomes, process);
  setting.processes->network.WaitQuiet();
  setting.processes->network.Close(0);
  rig->StartAll(setting.exchange.get(), 1, outcomes, 2);
  for (int32_t p = 0; p < 6; ++p) {
    outcomes.Wait(p);
    CHECK(outcomes.status(p).code == Code::kUnavailable);
    CHECK_CONTAINS(outcomes.status(p).message, "(host a) closes its network");
  }
  CHECK(rig->IsUntouched());
  auto next = setting.MakeRig();
  const Outcomes refused(6);
  next->StartAll(setting.exchange.get(), 2, refused, 0);
  for (int32_t p = 0; p < 6; ++p) {
    if (setting.site->process_of[p] != 0) continue;
    refused.Wait(p);
    CHECK_CONTAINS(refused.status(p).message, "the network of this process has been closed");
  }
}

// The same while rows move.
TEST(ClosedInFlight) {
  Setting setting;
  auto rig = setting.MakeRig();
  setting.processes->network.Hold(true);
  const Outcomes outcomes(6);
  rig->StartAll(setting.exchange.get(), 1, outcomes);
  setting.processes->network.WaitQuiet();
  setting.processes->network.Close(2);
  for (int32_t p = 0; p < 6; ++p) {
    outcomes.Wait(p);
    CHECK(outcomes.status(p).code == Code::kUnavailable);
    CHECK_CONTAINS(outcomes.status(p).message, "(host c) closes its network. Waiting for");
  }
  CHECK_EQ(setting.processes->network.OpenRequests(), 0);
}

}  // namespace
}  // namespace fastjax::test
