// How NCCL's library is found, and how call sites share communicators. Exchanges of every kind are in gpu_network_test.
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/nccl/library.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/gpu/nccl_rig.h"
#include "support/sites.h"
#include "support/threads.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using gpu::nccl::Load;
using planner::Scheduler;

// Before the fake is loaded.
TEST(Libraries) {
  std::string wrong;
  CHECK(Load({"libno_nccl_is_called_that.so.2"}, &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "cannot load NCCL or RCCL (libno_nccl");
  CHECK_CONTAINS(wrong, "pip install 'jax[cuda12]'");
  CHECK(Load({}, &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "no name of it was given");
  CHECK(Load({"libm.so.6"}, &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "libm.so.6 is neither NCCL nor RCCL");
  CHECK(Load({FASTJAX_FAKE_NCCL_WITHOUT_ABORT}, &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "lacks ncclCommAbort, which fastjax needs");

  for (const auto& [version, text] : std::vector<std::pair<int, const char*>>{
           {2804, "is NCCL 2.8.4"}, {21705, "is NCCL 2.17.5"}, {30000, "is NCCL 3.0.0"}}) {
    Fake().version = version;
    CHECK(Load(FakeLibrary(), &wrong) == nullptr);
    CHECK_CONTAINS(wrong, text);
    CHECK_CONTAINS(wrong, "fastjax needs 2.18 or a newer 2.x: pip install");
  }
  Fake().version = 22707;
  const auto* const library = Load(FakeLibrary(), &wrong);
  CHECK(library != nullptr && library->version == "NCCL 2.27.7");
  CHECK(Load(FakeLibrary(), &wrong) == library);
  // What is loaded already is taken, wherever it stands.
  const auto* const loaded = Load({FASTJAX_FAKE_NCCL_COPY, FASTJAX_FAKE_NCCL}, &wrong);
  CHECK(loaded != nullptr && loaded->path == library->path);
  const auto* const copy = Load({"libno_nccl_is_called_that.so.2", FASTJAX_FAKE_NCCL_COPY}, &wrong);
  CHECK(copy != nullptr && copy->path != library->path);
}

// Peers' memory is used where it can be: nothing is loaded, and no communicator made.
TEST(PeersFirst) {
  std::mt19937_64 random(2);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
  const NcclSetting setting(fastjax_gpu_driver(), {"libno_nccl_is_called_that.so.2"});
  const auto exchange = setting.Open(site, options.exchange);
  Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  rig.CheckRun(exchange.get(), 1, false);
}

// Call sites share communicators, and the last closes them.
TEST(Sharing) {
  std::mt19937_64 random(3);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  const auto site = MakeSite(1, 4);
  const int before = Fake().made;
  const NcclSetting setting;
  auto first = setting.Open(site, options.exchange);
  auto second = setting.Open(site, options.exchange);
  const Case test_case = MakeCases(options.topology, random()).back();
  for (auto* exchange : {first.get(), second.get(), first.get()}) {
    Rig rig(site, options, test_case.traffic, &random);
    rig.CheckRun(exchange, 1, true);
  }
  CHECK_EQ(Fake().made.load(), before + 4);
  first.reset();
  CHECK(AreLive(4));
  second.reset();
  CHECK(AreLive(0));
}

// Call sites with groups of the same devices in different orders, all at once.
TEST(BesideEachOther) {
  constexpr int32_t kSites = 4;
  constexpr int64_t kRuns = 30;
  const NcclSetting setting;
  RunThreads(kSites, [&](int32_t i) {
    std::mt19937_64 random(10 + i);
    RigOptions options;
    options.topology = MakeTopology(2, 2);
    options.scheduler = i % 2 == 0 ? Scheduler::kFast : Scheduler::kRails;
    // Two with the same groups, which share communicators, and two with others.
    std::mt19937_64 dealt(i / 2);
    const auto site = MakeSite(2, 4, kNoTimeoutMs, &dealt);
    const auto exchange = setting.Open(site, options.exchange);
    const auto cases = MakeCases(options.topology, random());
    for (int64_t run_id = 1; run_id <= kRuns; ++run_id) {
      Rig rig(site, options, cases[static_cast<size_t>(run_id) % cases.size()].traffic, &random);
      rig.CheckRun(exchange.get(), run_id, run_id % 2 == 0);
    }
  });
  CHECK(AreLive(0));
}

TEST(NcclIsUsedAsItWants) { CHECK_EQ(Fake().mistakes.load(), 0); }

}  // namespace
}  // namespace fastjax::test
