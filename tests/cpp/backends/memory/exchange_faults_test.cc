// What the transport refuses, without touching anything; and programs that are thrown away while it works for them.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/memory/memory_backend.h"
#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "planner/planner.h"
#include "rendezvous/counts.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/table_words.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::TableView;

const char* const kPrefix = "exchange over axis 'x' (channel 7): ";

// Eight devices with a staged plan, small enough to be copied inline, or large enough for the pool.
struct Setting {
  explicit Setting(int64_t row_bytes, uint64_t seed, int64_t timeout_ms = kNoTimeoutMs)
      : random(seed), site(MakeSite(1, 8, timeout_ms, &random)) {
    options.topology = MakeTopology(2, 4);
    options.row_bytes = row_bytes;
    exchange = memory::OpenExchange(site, options.exchange);
    const Matrix traffic = Fill(options.topology, [this](int32_t, int32_t) { return 1 + random() % 9; });
    rig = std::make_unique<Rig>(site, options, traffic, &random);
  }

  std::mt19937_64 random;
  std::shared_ptr<CallSite> site;
  RigOptions options;
  std::shared_ptr<Exchange> exchange;
  std::unique_ptr<Rig> rig;
};

// Everyone is told the same.
Status CheckAllTold(const Outcomes& outcomes) {
  for (int32_t i = 1; i < outcomes.count(); ++i) {
    CHECK_EQ(outcomes.status(i).message, outcomes.status(0).message);
    CHECK(outcomes.status(i).code == outcomes.status(0).code);
  }
  return outcomes.status(0);
}

// First: there is no staging memory from before.
TEST(NoMemory) {
  Setting setting(1000, 6);
  Rig& rig = *setting.rig;
  int64_t staged = 0;
  for (int32_t p = 0; p < 8; ++p) staged += TableView(rig.table(p).data()).staging_rows();
  auto no_memory = std::make_unique<NoStagingMemory>();
  const Status status = CheckAllTold(rig.Run(setting.exchange.get(), 1, false));
  no_memory = nullptr;
  CHECK(status.code == Code::kInternal);
  CHECK_EQ(status.message, kPrefix + std::string("no memory for ") + std::to_string(1000 * staged) +
                               " bytes of staging; use scheduler=\"direct\", which needs none.");
  CHECK(rig.IsUntouched());
  rig.CheckRun(setting.exchange.get(), 2, false);
}

// Tables that are sound by themselves but wrong: whatever they say, nothing outside the buffers is touched.
TEST(WrongTables) {
  int64_t refused = 0;
  constexpr int32_t kRounds = 2000;
  for (const bool backwards : {false, true}) {
    Setting setting(8, 2);
    setting.options.exchange.reverse = backwards;
    setting.exchange = memory::OpenExchange(setting.site, setting.options.exchange);
    const Matrix traffic = Fill(setting.options.topology, [&](int32_t, int32_t) { return 1 + setting.random() % 9; });
    Rig rig(setting.site, setting.options, traffic, &setting.random);
    for (int32_t round = 0; round < kRounds; ++round) {
      std::vector<int32_t>& table = rig.table(static_cast<int32_t>(setting.random() % 8));
      const std::vector<int32_t> good = table;
      Damage(&table, &setting.random);
      rig.Reset();
      const Status status = CheckAllTold(rig.Run(setting.exchange.get(), round, false));
      CHECK(status.ok() || status.code == Code::kInvalidArgument);
      CHECK(rig.GuardsAreWhole());
      if (!status.ok()) CHECK(rig.IsUntouched());
      refused += status.ok() ? 0 : 1;
      table = good;
    }
  }
  CHECK_GT(refused, kRounds / 2);
  CHECK_LT(refused, 2 * kRounds);  // some are not noticed, and they are what this is about
}

// It is thrown away while the pool copies, or by the first completion: what was started is finished.
TEST(DroppedWhileCopying) {
  for (const int64_t row_bytes : {8, 5'000}) {
    for (const int32_t dropped_by : {-1, 0, 7}) {
      for (uint64_t round = 0; round < 10; ++round) {
        Setting setting(row_bytes, 9 + round);
        Exchange* exchange = setting.exchange.get();
        auto owner = std::make_shared<std::shared_ptr<Exchange>>(std::move(setting.exchange));
        const Outcomes outcomes(8);
        for (int32_t partition = 0; partition < 8; ++partition) {
          const auto drop = partition == dropped_by ? owner : nullptr;
          setting.rig->Start(exchange, 1, partition, [drop, done = outcomes.For(partition)](const Status& status) {
            if (drop != nullptr) drop->reset();
            done(status);
          });
        }
        if (dropped_by < 0) owner->reset();
        setting.rig->CheckEnd(outcomes);
      }
    }
  }
}

// A table that cannot be taken to one device fails the planning of all; so does a device that cannot take part.
TEST(TablesNotTaken) {
  const auto site = MakeSite(1, 3);
  const std::vector<int64_t> sizes(3, 1);
  for (const bool planned : {true, false}) {
    const auto counts = OpenCounts(nullptr, site, [=](const int64_t*, const TakePlan&, bool*) {
      return planned ? Status::Ok() : Status::Internal("no plan");
    });
    std::vector<int32_t> taken;  // whose
    const auto start = [&](int64_t run, int32_t p, const char* wrong, Completion done) {
      const auto take = [&taken, p, wrong] {
        taken.push_back(p);
        return wrong == nullptr ? Status::Ok() : Status::Internal(wrong);
      };
      counts->Start(run, p, {{sizes.data(), 3, IntKind::kS64}, nullptr, take}, std::move(done));
    };
    const Outcomes outcomes(3);
    for (int32_t p = 0; p < 3; ++p) start(1, p, p == 1 ? "no copy" : nullptr, outcomes.For(p));
    outcomes.WaitAll();
    CHECK_EQ(CheckAllTold(outcomes).message, planned ? "no copy" : "no plan");
    CHECK(taken == (planned ? std::vector{0, 1} : std::vector<int32_t>()));  // none behind the one that fails
    const Outcomes refused(3);
    taken.clear();
    counts->FailGroup(2, 0, Status::Unavailable("no sizes"), refused.For(0));
    for (int32_t p = 1; p < 3; ++p) start(2, p, nullptr, refused.For(p));
    refused.WaitAll();
    CHECK_EQ(CheckAllTold(refused).message, kPrefix + std::string("device 0 cannot take part: no sizes"));
    CHECK(taken.empty());
    const Outcomes good(3);
    for (int32_t p = 0; p < 3; ++p) start(3, p, nullptr, good.For(p));
    good.WaitAll();
    CHECK_EQ(CheckAllTold(good).message, planned ? "" : "no plan");
    CHECK(taken == (planned ? std::vector{0, 1, 2} : std::vector<int32_t>()));
  }
}

}  // namespace
}  // namespace fastjax::test
