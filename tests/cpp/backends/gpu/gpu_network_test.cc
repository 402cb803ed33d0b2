// Exchanges between GPUs of several processes, all of them emulated: processes meet over transports inside this one,
// and messages go by the fake NCCL. What is told of processes and devices that do not take part, or bring other shapes,
// is of all backends (rendezvous/process_launch.h), and in network_faults_test.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "kernels/copy.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/gpu/gpu_rig.h"
#include "support/gpu/nccl_rig.h"
#include "support/job_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using gpu::Gpu;

// Each process has GPUs of its own, whose numbers are those of the partitions. Within a process they reach each other.
Processes::Make OnGpus(const std::shared_ptr<Gpu>& gpu, const std::vector<std::string>& library) {
  return [gpu, library](const std::shared_ptr<ProcessGroup>& process_group) {
    const auto fabric = std::make_shared<gpu::nccl::Fabric>(gpu, library, gpu::MakeShareId(process_group));
    return Backend{process_group, {gpu, fabric}};
  };
}

struct Job {
  Job(const std::shared_ptr<CallSite>& site, const RigOptions& options, int32_t count, uint64_t seed,
      const std::vector<std::string>& library = FakeLibrary())
      : gpu(std::make_shared<Gpu>(fastjax_gpu_driver())),
        processes(std::make_unique<Processes>(count, seed, OnGpus(gpu, library))),
        exchange(std::make_unique<StreamedExchange>(gpu, std::make_unique<Everywhere>(processes.get(), site, options),
                                                    site->partitions(), false)) {}

  std::shared_ptr<Gpu> gpu;
  std::unique_ptr<Processes> processes;
  std::unique_ptr<StreamedExchange> exchange;
};

RigOptions TwoServers(int32_t per_server) {
  RigOptions options;
  options.topology = MakeTopology(2, per_server);
  return options;
}

// Two processes, each of which has the devices of one server.
struct TwoProcesses {
  explicit TwoProcesses(uint64_t seed, RigOptions given = TwoServers(2), int64_t timeout_ms = kNoTimeoutMs,
                        int32_t groups = 1, const std::vector<std::string>& library = FakeLibrary())
      : random(seed),
        options(std::move(given)),
        site(MakeSite(groups, options.topology.devices(), timeout_ms, &random)),
        processes(Deal(Owners::kServers, options.topology.devices_per_server, &random, site.get())),
        job(site, options, processes, seed, library),
        cases(MakeCases(options.topology, random())),
        rig(site, options, cases.back().traffic, &random) {}

  Outcomes Run(int64_t run_id) { return rig.Run(job.exchange.get(), run_id, true); }
  void CheckRun(int64_t run_id) { rig.CheckRun(job.exchange.get(), run_id, true); }

  std::mt19937_64 random;
  RigOptions options;
  std::shared_ptr<CallSite> site;
  int32_t processes;
  Job job;
  std::vector<Case> cases;
  Rig rig;
};

TEST(Exchanges) {
  std::mt19937_64 random(21);
  int64_t spread = 0;
  for (int trial = 0; trial < 15; ++trial) {
    const RigOptions options = DrawOptions(&random);
    // As many partitions as there are emulated devices, at most.
    const int32_t groups = options.topology.devices() <= 8 ? static_cast<int32_t>(1 + random() % 2) : 1;
    const auto site = MakeSite(groups, options.topology.devices(), kNoTimeoutMs, &random);
    const int32_t count =
        Deal(static_cast<Owners>(random() % 4), options.topology.devices_per_server, &random, site.get());
    spread += count > 1 ? 1 : 0;
    const Context context(Name(options) + ", " + std::to_string(count) + " processes");
    Job job(site, options, count, random());
    int64_t launch_id = 0;
    for (const Case& test_case : SomeCases(options.topology, random())) {
      const Context inner(test_case.name);
      Rig rig(site, options, test_case.traffic, &random);
      rig.CheckRun(job.exchange.get(), launch_id++ / 2, true);  // every run comes by twice
    }
  }
  CHECK_GE(spread, 7);
}

// Rows of any size that indices name, and on the way back their factors, between two processes: from other devices'
// memory and in messages.
TEST(Indexed) {
  std::vector<RigOptions> all = IndexedSums();
  for (const int64_t row_bytes : {0, 1, 24, 127, 5000}) {
    RigOptions gathers;
    gathers.topology = MakeTopology(2, 3);
    gathers.per_peer = 2;
    gathers.row_bytes = row_bytes;
    gathers.element = kernels::ElementKind::kOpaque;
    gathers.exchange.indexed = true;
    all.push_back(gathers);
  }
  uint64_t seed = 40;
  for (RigOptions& options : all) {
    options.on_device = true;
    const Context context(Name(options));
    TwoProcesses two(seed++, options);
    for (int64_t run = 1; run <= 2; ++run) {
      two.rig.Reset();
      two.CheckRun(run);
    }
  }
}

// Slices that overlap are everybody's mistake, and said in the same words.
TEST(OverlappingSlices) {
  RigOptions options = IndexedSums().front();
  options.on_device = true;
  options.overlap = true;
  TwoProcesses two(60, options);
  const Outcomes outcomes = two.Run(1);
  for (int32_t p = 0; p < outcomes.count(); ++p) {
    CHECK_CONTAINS(outcomes.status(p).message, "input slices overlap, and GPUs sum rows by indices only where");
    CHECK_EQ(outcomes.status(p).message, outcomes.status(0).message);
  }
  CHECK(two.rig.IsUntouched());
}

// A process that has nothing to send or to get makes communicators with the others.
TEST(NothingToSend) {
  std::mt19937_64 random(27);
  RigOptions options;
  options.topology = MakeTopology(3, 1);
  const auto site = MakeSite(1, 3, kNoTimeoutMs);
  Deal(Owners::kServers, 1, &random, site.get());
  for (int32_t idle = 0; idle < 3; ++idle) {
    Job job(site, options, 3, 6);
    const Matrix traffic = Fill(options.topology, [&](int32_t source, int32_t target) {
      return source == idle || target == idle ? 0 : 1 + source + target;
    });
    Rig rig(site, options, traffic, &random);
    rig.CheckRun(job.exchange.get(), 1, true);
  }
}

// Every process counts, and times until its work is on streams.
TEST(Figures) {
  TwoProcesses two(24);
  Records::Collect(true);
  for (int64_t run = 0; run < 3; ++run) CHECK(two.Run(run).all_ok());
  Records::Collect(false);
  const std::vector<SiteReport> reports = Records::Get().Report();
  CHECK_EQ(reports.size(), 2U);
  for (const SiteReport& report : reports) {
    CHECK(report.kind.queues);
    CHECK_EQ(report.statistics.exchanges, 3);
    CHECK_EQ(report.statistics.exchange.count, 3);
    CHECK_EQ(report.statistics.failures, 0);
  }
}

// What a process lacks, all are told of.
TEST(NoLibrary) {
  TwoProcesses two(22, TwoServers(2), kNoTimeoutMs, 1, {"/nowhere/libnccl.so.2"});
  const Outcomes outcomes = two.Run(1);
  for (int32_t p = 0; p < outcomes.count(); ++p) {
    CHECK(outcomes.status(p).code == Code::kUnavailable);
    CHECK_CONTAINS(outcomes.status(p).message,
                   "exchange over axis 'x' (channel 7): cannot load NCCL or RCCL (/nowhere/libnccl.so.2");
  }
  CHECK(two.rig.IsUntouched());
}

// One process cannot make an id, and the other waits for it in vain: the next exchange works.
TEST(NoId) {
  TwoProcesses two(26, TwoServers(1), 3000);
  Fake().fail_id = gpu::nccl::kSystemError;
  const Outcomes outcomes = two.Run(1);
  for (int32_t p = 0; p < outcomes.count(); ++p) CHECK_CONTAINS(outcomes.status(p).message, "could not make an id");
  two.CheckRun(2);
}

// A message that got lost is told to the next exchange of its group, whichever of the call site's jobs that comes by.
TEST(LostMessage) {
  TwoProcesses two(25, TwoServers(1), 2000, 2);
  const auto& site = two.site;
  Rig& rig = two.rig;
  const auto run = [&](int64_t run_id, const std::vector<int32_t>& groups) {
    const Outcomes outcomes(site->partitions());
    // A process's device comes with a job that is free: groups have those of each other when they come in another
    // order.
    for (int32_t process = 0; process < 2; ++process) {
      for (const int32_t group : groups) {
        for (int32_t p = 0; p < site->partitions(); ++p) {
          if (site->process_of[p] != process || site->group_of[p] != group) continue;
          rig.Start(two.job.exchange.get(), run_id, p, outcomes.For(p));
        }
      }
    }
    for (int32_t p = 0; p < site->partitions(); ++p) {
      if (std::find(groups.begin(), groups.end(), site->group_of[p]) != groups.end()) outcomes.Wait(p);
    }
    return outcomes;
  };
  CHECK(run(1, {0, 1}).all_ok());
  CHECK(rig.IsRight());
  Fake().lost_sends = 1;
  const Outcomes lost = run(2, {0});
  const Outcomes outcomes = run(3, {1, 0});
  bool told = false;
  for (int32_t p = 0; p < site->partitions(); ++p) {
    if (site->group_of[p] == 0) CHECK_EQ(lost.status(p).message, "");  // for the host
    told = told ||
           (site->group_of[p] == 0 && Contains(outcomes.status(p).message, " waited 2.0 s for messages of stage "));
  }
  CHECK(told);
  // What the other process had put on its streams by then waits in vain as well, and is told likewise.
  const Outcomes after = run(4, {0, 1});
  for (int32_t p = 0; p < site->partitions(); ++p) {
    CHECK(after.status(p).ok() || (site->group_of[p] == 0 && Contains(after.status(p).message, " waited 2.0 s for ")));
  }
  rig.Reset();
  CHECK(run(5, {1, 0}).all_ok());
  CHECK(rig.IsRight());
}

TEST(NcclIsUsedAsItWants) { CHECK_EQ(Fake().mistakes.load(), 0); }

}  // namespace
}  // namespace fastjax::test
