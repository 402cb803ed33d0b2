#include "planner/planner.h"

#include <algorithm>
#include <iterator>

#include "planner/hash.h"
#include "planner/lower_bound.h"
#include "planner/schedule.h"
#include "planner/scheduler_info.h"

namespace fastjax::planner {
namespace {

// In the order of the enumeration.
constexpr const SchedulerInfo* kSchedulers[] = {
#define FASTJAX_SCHEDULER(Name) &k##Name##Scheduler,
#include "planner/schedulers.inc"
#undef FASTJAX_SCHEDULER
};

uint64_t SettingsHash(const Topology& topology, Scheduler scheduler, int64_t row_bytes) {
  const int64_t settings[] = {topology.servers,
                              topology.devices_per_server,
                              topology.scale_up_bandwidth,
                              topology.scale_out_bandwidth,
                              topology.scale_up_latency_ns,
                              topology.scale_out_latency_ns,
                              topology.transfer_overhead_ns,
                              topology.incast_loss_ppm,
                              static_cast<int64_t>(scheduler),
                              row_bytes};
  const uint64_t hash = HashInt64(settings, std::size(settings), 0);
  const auto& nics = topology.nic_bandwidths;
  return nics.empty() ? hash : HashInt64(nics.data(), static_cast<int64_t>(nics.size()), hash);
}

bool FitsInt32(int64_t rows) { return rows >> 31 == 0; }

uint64_t MatchingsHash(const MatchingList& matchings, uint64_t traffic) {
  const uint64_t weights = HashInt64(matchings.weights.data(), matchings.count(), traffic);
  return StripedHash(weights).Finish(static_cast<int64_t>(matchings.to.size()),
                                     [&](int64_t i) { return static_cast<uint64_t>(matchings.to[i]); });
}

}  // namespace

const SchedulerInfo& GetSchedulerInfo(Scheduler scheduler) { return *kSchedulers[static_cast<int32_t>(scheduler)]; }

int32_t NumSchedulers() { return static_cast<int32_t>(std::size(kSchedulers)); }

const std::vector<std::string_view>& SchedulerNames() {
  static const auto& names = *new std::vector<std::string_view>([] {
    std::vector<std::string_view> all;
    for (const SchedulerInfo* info : kSchedulers) all.push_back(info->traits.name);
    return all;
  }());
  return names;
}

struct Planner::State {
  State(const Topology& t, Scheduler s, int64_t bytes)
      : topology(t),
        scheduler(s),
        row_bytes(bytes),
        settings_hash(SettingsHash(t, s, bytes)),
        schedule(GetSchedulerInfo(s).make(t, bytes)) {}

  int64_t entries() const { return int64_t{topology.devices()} * topology.devices(); }

  Topology topology;
  Scheduler scheduler;
  int64_t row_bytes;
  uint64_t settings_hash;
  const int64_t* traffic = nullptr;
  Fingerprint fingerprint;
  bool blocks_fit_int32 = true;
  bool staging_fits_int32 = true;
  std::unique_ptr<Schedule> schedule;
  TransferBuffer buffer;
};

Planner::Planner(const Topology& topology, Scheduler scheduler, int64_t row_bytes)
    : state_(std::make_unique<State>(topology, scheduler, row_bytes)) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

Fingerprint Planner::FingerprintOf(const int64_t* traffic) const {
  return {HashInt64(traffic, state_->entries(), state_->settings_hash)};
}

bool Planner::planned(const Fingerprint& fingerprint) const {
  return state_->traffic != nullptr && state_->fingerprint.hash == fingerprint.hash;
}

void Planner::Plan(const int64_t* traffic, const Fingerprint& fingerprint) {
  if (planned(fingerprint)) {
    state_->traffic = traffic;
    return state_->schedule->Rebind(traffic);
  }
  state_->schedule->SetMatchings(nullptr);
  MakePlan(traffic, fingerprint);
}

void Planner::PlanWith(const int64_t* traffic, const MatchingList& matchings) {
  Fingerprint fingerprint = FingerprintOf(traffic);
  fingerprint.hash = MatchingsHash(matchings, fingerprint.hash);
  state_->schedule->SetMatchings(&matchings);
  MakePlan(traffic, fingerprint);
}

void Planner::MakePlan(const int64_t* traffic, const Fingerprint& fingerprint) {
  State& state = *state_;
  // If memory runs out half-way, nothing has been planned.
  state.traffic = nullptr;
  state.schedule->Plan(traffic);
  // Blocks are looked at one by one only where sums of them do not say enough.
  state.blocks_fit_int32 =
      FitsInt32(state.schedule->block_bound()) || std::all_of(traffic, traffic + state.entries(), FitsInt32);
  uint64_t staging = 0;
  for (int32_t server = 0; server < state.topology.servers; ++server) {
    staging |= static_cast<uint64_t>(state.schedule->StagingRows(server));
  }
  state.staging_fits_int32 = staging >> 31 == 0;
  state.fingerprint = fingerprint;
  state.traffic = traffic;
}

const Topology& Planner::topology() const { return state_->topology; }
Scheduler Planner::scheduler() const { return state_->scheduler; }
Scheduler Planner::chosen() const { return state_->schedule->chosen(state_->scheduler); }
const int64_t* Planner::traffic() const { return state_->traffic; }
int32_t Planner::num_stages() const { return state_->schedule->num_stages(); }
const MatchingList* Planner::matchings() const { return state_->schedule->matched().matchings; }
const int64_t* Planner::units() const { return state_->schedule->matched().units; }
int64_t Planner::startup_units() const { return state_->schedule->matched().startup; }
const std::vector<Choice>* Planner::choices() const { return state_->schedule->choices(); }
int32_t Planner::num_matchings() const { return matchings() == nullptr ? num_stages() : matchings()->count(); }
uint64_t Planner::hash() const { return state_->fingerprint.hash; }
bool Planner::blocks_fit_int32() const { return state_->blocks_fit_int32; }
bool Planner::staging_fits_int32() const { return state_->staging_fits_int32; }

void Planner::AppendTransfers(std::vector<Transfer>* out) {
  const TransferRange all = DeviceTransfers(kEveryDevice);
  out->insert(out->end(), all.begin(), all.end());
}

TransferRange Planner::DeviceTransfers(int32_t device) {
  state_->buffer.Clear();
  try {
    state_->schedule->Append(device, &state_->buffer);
  } catch (...) {
    state_->traffic = nullptr;  // what was planned is only half prepared
    throw;
  }
  return state_->buffer.range();
}

int64_t Planner::StagingRows(int32_t device) const {
  return state_->schedule->StagingRows(state_->topology.server_of(device));
}

double Planner::LowerBound() const { return LowerBoundSeconds(state_->topology, state_->row_bytes, state_->traffic); }

double Planner::PlanningTime() const {
  const Picoseconds taken = GetSchedulerInfo(chosen()).planning_time(state_->topology);
  return ToSeconds(taken + state_->schedule->ChoosingTime());
}

// Rounding, and prices beyond what integers hold, must not make a plan look faster than anything can be.
double Planner::PredictedTime() {
  return std::max(ToSeconds(state_->schedule->PredictedTime()), LowerBound()) + PlanningTime();
}

}  // namespace fastjax::planner
