// FAST: rows for a server are spread over its rails, server pairs exchange them in one-to-one stages, and rails hand
// rows to their targets. Plan works on servers only; a server pair is balanced when a device asks for it.
#include "planner/schedulers/fast.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "planner/balance.h"
#include "planner/matchings.h"
#include "planner/rail_schedule.h"
#include "planner/schedule.h"
#include "planner/stages.h"

namespace fastjax::planner {
namespace {

class Fast final : public RailSchedule {
 public:
  Fast(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common)
      : RailSchedule(std::move(tiles), row_bytes, in_common),
        matchings_(topology_.servers),
        stages_(*tiles_, pricing_) {}

  void Plan(const int64_t* traffic, const MatchingList* given) override {
    PlanTiles(traffic);
    if (given == nullptr || !matchings_.Take(tiles_->units(), *given)) {
      matchings_.Build(tiles_->units(), pricing_.startup_rows());
    }
    stages_.Build(matchings_.matchings());
  }
  int32_t num_stages() const override { return stages_.count(); }
  Matched matched() const override { return {&matchings_.matchings(), tiles_->units(), pricing_.startup_rows()}; }
  Picoseconds PredictedTime(const int64_t* /*traffic*/) override { return stages_.PredictedTime(); }

 private:
  void CollectSlices(int32_t stage, int32_t server, std::vector<Slice>* slices) override;

  MatchingBuilder matchings_;
  StageBuilder stages_;
};

void Fast::CollectSlices(int32_t stage, int32_t server, std::vector<Slice>* slices) {
  const int32_t to_own = server == kEveryDevice ? kIdle : stages_.from(stage, server);
  ForEachSender(topology_.servers, server, to_own, [&](int32_t source) {
    const int32_t target = stages_.to(stage, source);
    if (target == kIdle) return;
    const int64_t begin = stages_.begin(stage, source);
    const int64_t units = tiles_->units()[tiles_->PairOf(source, target)];
    slices->push_back({source, target, begin, std::min(begin + stages_.length(stage), units)});
  });
}

// docs/design/stage_tables.md derives this.
int64_t MaxEntries(const Topology& topology) {
  const int64_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t stages = MaxStages(topology.servers);
  const int64_t local = 2 * m - 1;
  const int64_t scale_out = peers * (m * m - 1) + stages;
  if (m == 1) return local + 2 * scale_out;
  const int64_t rail_side = peers * (m * m - m) + stages;
  const int64_t peer_side = peers * std::min(3 * m - 3, m * (m - 1)) + (m - 1) * stages;
  return local + 2 * (scale_out + rail_side + peer_side);
}

}  // namespace

std::unique_ptr<Schedule> MakeFastOn(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common) {
  return std::make_unique<Fast>(std::move(tiles), row_bytes, in_common);
}

constexpr SchedulerInfo kFastScheduler = {
    {"fast", "rows are balanced over the rails and cross in one-to-one stages",
     /*order=*/10, /*stages_rows=*/true, NicNeed::kAnyOfServer, Choosing::kConsidered},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return MakeFastOn(MakeBalancedTiles(topology), row_bytes, false);
    },
    MaxEntries,
    // On one core of a server of 2020 with 8 devices a server, for pair-Zipf traffic: above what was measured, by 28 %
    // at 32 devices, and by 1 to 16 % from 64 to 320.
    {1'000'000, /*block=*/1500, /*sent=*/20'000, /*pair=*/170'000},
    {kTileSums.fixed, kTileSums.block, /*sent=*/0, /*pair=*/130'000},  // and the matchings
};

}  // namespace fastjax::planner
