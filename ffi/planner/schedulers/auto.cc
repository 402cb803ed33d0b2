// The cheapest by the cost model of those that want to be considered. Five of them are named here, since sums that they
// have in common tell what each takes at least, mostly enough not to look at it. Any other is priced by itself.
#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "planner/all_pairs.h"
#include "planner/balance.h"
#include "planner/schedule.h"
#include "planner/schedulers/fast.h"
#include "planner/straight.h"

namespace fastjax::planner {
namespace {

constexpr Scheduler kNamed[] = {Scheduler::kBalanced, Scheduler::kFast, Scheduler::kRelay, Scheduler::kDirect,
                                Scheduler::kSpreadout};

class Auto final : public Schedule {
 public:
  Auto(const Topology& topology, int64_t row_bytes);

  void Plan(const int64_t* traffic, const MatchingList* given) override;
  int32_t num_stages() const override { return best_->num_stages(); }
  int64_t block_bound() const override { return best_->block_bound(); }
  void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) override {
    best_->Append(traffic, device, out);
  }
  int64_t StagingRows(int32_t server) const override { return best_->StagingRows(server); }
  Matched matched() const override { return best_->matched(); }
  Picoseconds PredictedTime(const int64_t* traffic) override { return best_->PredictedTime(traffic); }
  Scheduler chosen(Scheduler) const override { return chosen_; }
  Picoseconds ChoosingTime() const override;
  const std::vector<Choice>* choices() const override { return &choices_; }

 private:
  struct Other {
    Scheduler scheduler;
    std::unique_ptr<Schedule> schedule;
  };

  bool MayTake(Scheduler scheduler) const;
  bool Consider(Scheduler scheduler, Schedule* schedule, Picoseconds at_least);
  bool Look(Scheduler scheduler, Schedule* schedule, Picoseconds at_least);
  void Compare(const Tiles::Busiest& busiest);
  void Record(Scheduler scheduler, bool planned, int32_t stages, Picoseconds exchange);
  Picoseconds LookingTime(Scheduler scheduler) const;

  Topology topology_;
  Pricing pricing_;
  bool nics_work_;
  Straight direct_;
  Straight spreadout_;
  std::shared_ptr<Tiles> tiles_;  // of these two
  std::unique_ptr<Schedule> fast_;
  std::unique_ptr<Schedule> balanced_;
  std::unique_ptr<Schedule> relay_;
  std::vector<Other> others_;  // that may be taken
  // Of the current plan.
  const int64_t* traffic_ = nullptr;
  const MatchingList* given_ = nullptr;
  Schedule* best_ = nullptr;
  Scheduler chosen_ = Scheduler::kDirect;
  Picoseconds cheapest_ = 0;
  Picoseconds looked_ = 0;  // what all prices together took
  std::vector<Choice> choices_;
};

Auto::Auto(const Topology& topology, int64_t row_bytes)
    : topology_(topology),
      pricing_(topology, row_bytes),
      nics_work_(std::count(topology.nic_bandwidths.begin(), topology.nic_bandwidths.end(), 0) == 0),
      direct_(topology, row_bytes, false),
      spreadout_(topology, row_bytes, true),
      tiles_(MakeBalancedTiles(topology)),
      fast_(MakeFastOn(tiles_, row_bytes, true)),
      balanced_(MakeAllPairs(tiles_, row_bytes, true)),
      relay_(kRelayScheduler.make(topology, row_bytes)) {
  for (int32_t number = 0; number < NumSchedulers(); ++number) {
    const auto scheduler = static_cast<Scheduler>(number);
    if (std::find(std::begin(kNamed), std::end(kNamed), scheduler) != std::end(kNamed) || !MayTake(scheduler)) continue;
    others_.push_back({scheduler, GetSchedulerInfo(scheduler).make(topology, row_bytes)});
  }
  choices_.reserve(std::size(kNamed) + others_.size());
}

// Own NICs that have failed send nothing, so only schedulers that go round them will do.
bool Auto::MayTake(Scheduler scheduler) const {
  const SchedulerTraits& traits = GetSchedulerInfo(scheduler).traits;
  return traits.choosing == Choosing::kConsidered && (nics_work_ || traits.nics == NicNeed::kAnyOfServer);
}

void Auto::Plan(const int64_t* traffic, const MatchingList* given) {
  traffic_ = traffic;
  given_ = given;
  choices_.clear();
  best_ = nullptr;
  looked_ = 0;
  if (topology_.servers > 1) {
    looked_ = kTileSums.Of(topology_);
    tiles_->CountRowsOfDevices(true);
    tiles_->Plan(traffic);
    const Tiles::Busiest busiest = tiles_->FindBusiest();
    if (busiest.peers > 0) Compare(busiest);
  }
  if (best_ == nullptr) Look(Scheduler::kDirect, &direct_, 0);
}

// Sums over servers come first: they tell where relay cannot win, which is wherever a device has much more to send than
// others, and where direct cannot, which is also where one has much more to receive. Each is priced from below, by what
// is known by then, so that none pays for plans that cannot be used. Nor is one looked at that could save less than its
// own look takes, most of which would be lost. Each peer of a device takes a stage of spreadout: as many as direct has
// counted, or, of all devices of a server, one for each server that it has rows for.
void Auto::Compare(const Tiles::Busiest& busiest) {
  const Picoseconds start = pricing_.scale_out_latency;
  Consider(Scheduler::kBalanced, balanced_.get(), 0);
  // Where NICs differ, stages without a whole row in them are left out, and what they would take with them.
  const int64_t units = topology_.equal_nics() ? busiest.units : 0;
  Consider(Scheduler::kFast, fast_.get(), pricing_.scale_out.Time(units) + start * busiest.peers);
  const Picoseconds sent = pricing_.scale_out.Time(tiles_->most_sent());
  const Picoseconds own = std::max(sent, pricing_.scale_out.Time(tiles_->most_received()));
  Consider(Scheduler::kRelay, relay_.get(), sent + start);
  const bool counted = Consider(Scheduler::kDirect, &direct_, own + start);
  const int64_t m = topology_.devices_per_server;
  const int64_t stages = counted ? direct_.transfers() : (busiest.peers + m - 1) / m;
  Consider(Scheduler::kSpreadout, &spreadout_, own + start * stages);
  for (const Other& other : others_) Consider(other.scheduler, other.schedule.get(), 0);
}

bool Auto::Consider(Scheduler scheduler, Schedule* schedule, Picoseconds at_least) {
  return MayTake(scheduler) && Look(scheduler, schedule, at_least);
}

// Plans, and takes the plan if it is the cheapest so far; unless it cannot be. Whether it was planned.
bool Auto::Look(Scheduler scheduler, Schedule* schedule, Picoseconds at_least) {
  const Picoseconds planning = GetSchedulerInfo(scheduler).planning.Of(topology_);
  const Picoseconds looking = LookingTime(scheduler);
  if (best_ != nullptr && at_least + planning + looking >= cheapest_) {
    Record(scheduler, false, 0, at_least);
    return false;
  }
  looked_ += looking;
  schedule->Plan(traffic_, given_);
  const Picoseconds exchange = schedule->PredictedTime(traffic_);
  Record(scheduler, true, schedule->num_stages(), exchange);
  if (best_ != nullptr && exchange + planning >= cheapest_) return true;
  best_ = schedule;
  chosen_ = scheduler;
  cheapest_ = exchange + planning;
  return true;
}

// All looks, but for what planning the one that was taken would have done by itself.
Picoseconds Auto::ChoosingTime() const {
  const SchedulerInfo& taken = GetSchedulerInfo(chosen_);
  return looked_ - std::min(taken.pricing.Of(topology_), taken.planning.Of(topology_));
}

// Sums over servers are made before all others, and are those of two.
Picoseconds Auto::LookingTime(Scheduler scheduler) const {
  const Picoseconds pricing = GetSchedulerInfo(scheduler).pricing.Of(topology_);
  const bool summed = scheduler == Scheduler::kBalanced || scheduler == Scheduler::kFast;
  return summed ? pricing - kTileSums.Of(topology_) : pricing;
}

void Auto::Record(Scheduler scheduler, bool planned, int32_t stages, Picoseconds exchange) {
  const Picoseconds planning = GetSchedulerInfo(scheduler).planning.Of(topology_);
  choices_.push_back({scheduler, planned, stages, ToSeconds(exchange), ToSeconds(planning)});
}

// The chosen one's table, whichever it is. Inside one server nothing is chosen.
int64_t MaxEntries(const Topology& topology) {
  int64_t most = kDirectScheduler.max_entries(topology);
  for (int32_t number = 0; topology.servers > 1 && number < NumSchedulers(); ++number) {
    const SchedulerInfo& info = GetSchedulerInfo(static_cast<Scheduler>(number));
    if (info.traits.choosing == Choosing::kConsidered) most = std::max(most, info.max_entries(topology));
  }
  return most;
}

}  // namespace

// The times of a plan are those of the scheduler that was chosen, so there are none here.
constexpr SchedulerInfo kAutoScheduler = {
    {"auto", "the cheapest of the others by the cost model, whichever it is",
     /*order=*/0, /*stages_rows=*/true, NicNeed::kAnyOfServer, Choosing::kChooses},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return std::make_unique<Auto>(topology, row_bytes);
    },
    MaxEntries,
    {},
    {},
};

}  // namespace fastjax::planner
