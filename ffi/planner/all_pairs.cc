#include "planner/all_pairs.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "planner/pieces.h"
#include "planner/rail_schedule.h"

namespace fastjax::planner {
namespace {

class AllPairs final : public RailSchedule {
 public:
  using RailSchedule::RailSchedule;

  void Plan(const int64_t* traffic, const MatchingList* /*given*/) override {
    PlanTiles(traffic);
    busiest_ = tiles_->FindBusiest();
    Cut();
  }
  int32_t num_stages() const override { return pieces_.count; }
  Picoseconds PredictedTime(const int64_t* traffic) override;

 private:
  void Cut();
  void CollectSlices(int32_t piece, int32_t server, std::vector<Slice>* slices) override;
  Picoseconds InStep() const;

  Tiles::Busiest busiest_;
  Tiles::Inside inside_;
  Pieces pieces_;
};

// Rails carry first what needs no balance and last what needs no redistribution. Rails and pairs differ, so half of it
// is counted on, but for what one pair brings.
void AllPairs::Cut() {
  pieces_ = {};
  inside_ = tiles_->FindInside();
  if (busiest_.peers == 0) return;
  const auto share = [&](Wide units, int32_t part) {
    return static_cast<Share>(units * kAll / (inside_.units * part));
  };
  const AroundWork balance = {pricing_.scale_up.Time(inside_.balance), share(inside_.balanced_units, 2)};
  const AroundWork redistribute = {pricing_.scale_up.Time(inside_.redistribute),
                                   share(inside_.home_units, busiest_.peers == 1 ? 1 : 2)};
  // The fullest rail of the largest pair has rows in each, wherever pieces begin.
  const int64_t rows = std::max<int64_t>(busiest_.rows_of_pair / topology_.devices_per_server, 1);
  pieces_ = CutAtOnce(pricing_.scale_out.Time(busiest_.units), balance, redistribute, pricing_.scale_out_latency,
                      2 * kAll / rows + 1);
}

// A piece is the same share of every pair. Every server begins with the one behind it, so that none gets all that is
// posted first, and another nothing for as long as posting takes.
void AllPairs::CollectSlices(int32_t piece, int32_t server, std::vector<Slice>* slices) {
  const int32_t n = topology_.servers;
  for (int32_t shift = 1; shift < n; ++shift) {
    ForEachSender(n, server, Wrapped(server - shift + n, n), [&](int32_t source) {
      const int32_t target = Wrapped(source + shift, n);
      const int32_t pair = tiles_->PairOf(source, target);
      if (tiles_->sum(pair) == 0) return;
      const auto edge = [&](int32_t k) {
        return static_cast<int64_t>(Wide{tiles_->units()[pair]} * pieces_.edges[k] / kAll);
      };
      // Sprayed rails carry a little more or less than their quotas, hence more units than the pair has of them.
      const int64_t end = piece + 1 == pieces_.count ? int64_t{1} << 62 : edge(piece + 1);
      slices->push_back({source, target, edge(piece), end});
    });
  }
}

// What the server matrix would take if servers went from one to the next together.
Picoseconds AllPairs::InStep() const {
  const int32_t n = topology_.servers;
  int64_t units = 0;
  for (int32_t shift = 1; shift < n; ++shift) {
    int64_t longest = 0;
    for (int32_t s = 0; s < n; ++s) {
      longest = std::max(longest, tiles_->units()[tiles_->PairOf(s, Wrapped(s + shift, n))]);
    }
    units += longest;
  }
  return pricing_.scale_out.Time(units);
}

// NICs are busy from when the first piece is balanced until the last one is to be redistributed. Where servers are the
// slower, their busiest device waits for one piece to cross, the first or the last, and works on all others meanwhile.
Picoseconds AllPairs::PredictedTime(const int64_t* /*traffic*/) {
  const Picoseconds local = tiles_->local_rows() == 0 ? Picoseconds{0} : pricing_.scale_up_latency;
  const int64_t moved = std::max(inside_.balance, inside_.redistribute);
  const Picoseconds up = local + pricing_.scale_up.Time(moved + tiles_->local_rows());
  if (pieces_.count == 0) return up;
  const auto hop = [&](Picoseconds work) { return work == 0 ? work : pricing_.scale_up_latency + work; };
  const Picoseconds busy = AtOnceTime(topology_, pricing_.scale_out.Time(busiest_.units), InStep());
  const Picoseconds out = PostedTime(busy, pricing_.transfer_overhead, busiest_.peers * pieces_.count) +
                          pricing_.scale_out_latency * pieces_.count;
  const Picoseconds inside = hop(pricing_.scale_up.Time(moved)) + out / pieces_.count;
  return std::max({up, inside, out + hop(pieces_.balance) + hop(pieces_.redistribute)});
}

}  // namespace

std::unique_ptr<Schedule> MakeAllPairs(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common) {
  return std::make_unique<AllPairs>(std::move(tiles), row_bytes, in_common);
}

// Each boundary between pieces cuts one transfer of every list that it falls into.
int64_t MaxEntriesOfCuts(const Topology& topology) {
  constexpr int64_t kCuts = kMostPieces - 1;
  return kCuts * (topology.servers - 1) * (topology.devices_per_server == 1 ? 2 : 2 + 2 * topology.devices_per_server);
}

}  // namespace fastjax::planner
