// Exchanges in memory that programs of JAX cannot be told to do: failures of planning, and large rows on their way
// back. What they do with rows of any kind, and many at once, is in tests/exchange_checks.
#include <cstdint>
#include <new>
#include <random>

#include "backends/memory/memory_backend.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/exchange_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

constexpr Scheduler kSchedulers[] = {Scheduler::kDirect, Scheduler::kSpreadout, Scheduler::kFast};

// A planner that refuses, and one that runs out of memory: every device is told.
TEST(PlanningFails) {
  std::mt19937_64 random(6);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
  for (const bool throws : {false, true}) {
    options.exchange.plan = [throws](const int64_t*, const TakePlan&, bool*) {
      if (throws) throw std::bad_alloc();
      return Status::Invalid("no plan");
    };
    const auto exchange = memory::OpenExchange(site, options.exchange);
    Rig rig(site, options, MakeCases(options.topology, random()).front().traffic, &random);
    const Outcomes outcomes = rig.Run(exchange.get(), 1, true);
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK_EQ(outcomes.status(i).message, throws ? "fastjax: std::bad_alloc" : "no plan");
    }
    CHECK(rig.IsUntouched());
  }
}

// What the pool copies, and what is written past the caches: 50 KB to 13 MB.
TEST(Large) {
  std::mt19937_64 random(3);
  for (const int64_t row_bytes : {100, 2'000, 28'000}) {
    for (const Scheduler scheduler : kSchedulers) {
      if (row_bytes > 10'000 && scheduler != Scheduler::kFast) continue;
      for (const auto& exchange_options : {Way(false, false), Way(false, true), Way(true, false), Way(true, true)}) {
        RigOptions options;
        options.topology = MakeTopology(2, 4);
        options.scheduler = scheduler;
        options.row_bytes = row_bytes;
        options.exchange = exchange_options;
        options.overlap = exchange_options.reverse && exchange_options.transposed_table;
        const Context context(Name(options));
        const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
        // By tables, which list a transfer at both its ends, and by plans of its own, which list it once.
        ExchangeOptions planning = exchange_options;
        if (!planning.transposed_table) planning.plan = PlanSlices(options.topology, scheduler, row_bytes);
        const auto exchange = memory::OpenExchange(site, exchange_options);
        const auto planned = memory::OpenExchange(site, planning);
        Rig rig(site, options, Fill(options.topology, [&](int32_t, int32_t) { return random() % 16; }), &random);
        for (int64_t run_id = 0; run_id < 2; ++run_id) {
          rig.Reset();
          rig.CheckRun(exchange.get(), run_id, true);
          rig.Reset();
          rig.CheckRun(planned.get(), run_id, true);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastjax::test
