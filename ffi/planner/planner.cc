#include "planner/planner.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "planner/hash.h"
#include "planner/schedule.h"

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

int64_t BlocksOf(const Topology& topology) { return int64_t{topology.devices()} * topology.devices(); }

bool FitsInt32(int64_t rows) { return rows >> 31 == 0; }

uint64_t HashOf(const MatchingList& matchings, uint64_t traffic) {
  const uint64_t weights = HashInt64(matchings.weights.data(), matchings.count(), traffic);
  return StripedHash(weights).Finish(static_cast<int64_t>(matchings.to.size()),
                                     [&](int64_t i) { return static_cast<uint64_t>(matchings.to[i]); });
}

// Rows that leave or enter, of devices or servers.
struct Ends {
  explicit Ends(int32_t count) : out(count), in(count) {}
  double busiest(int32_t i) const { return static_cast<double>(std::max(out[i], in[i])); }

  std::vector<int64_t> out;
  std::vector<int64_t> in;
};

// The larger of: rows that leave or enter a server, over all its NICs; rows that leave or enter a device, over all its
// links. The only floating point in the planner: it informs and decides nothing.
double LowerBoundSeconds(const Topology& topology, int64_t row_bytes, const int64_t* traffic) {
  const int32_t devices = topology.devices();
  Ends by_device(devices);
  Ends by_server(topology.servers);
  for (int32_t src = 0; src < devices; ++src) {
    const int32_t source = topology.server_of(src);
    for (int32_t dst = 0; dst < devices; ++dst) {
      const int64_t rows = traffic[static_cast<int64_t>(src) * devices + dst];
      if (src == dst || rows == 0) continue;
      by_device.out[src] += rows;
      by_device.in[dst] += rows;
      const int32_t target = topology.server_of(dst);
      if (source == target) continue;
      by_server.out[source] += rows;
      by_server.in[target] += rows;
    }
  }
  double rows_per_rate = 0;
  for (int32_t server = 0; server < topology.servers; ++server) {
    double nics = 0;
    for (int32_t local = 0; local < topology.devices_per_server; ++local) {
      const int32_t device = topology.device(server, local);
      const auto nic = static_cast<double>(topology.nic_bandwidth(device));
      nics += nic;
      const double links = static_cast<double>(topology.scale_up_bandwidth) + nic;
      rows_per_rate = std::max(rows_per_rate, by_device.busiest(device) / links);
    }
    if (by_server.busiest(server) > 0) rows_per_rate = std::max(rows_per_rate, by_server.busiest(server) / nics);
  }
  return static_cast<double>(row_bytes) * rows_per_rate;
}

}  // namespace

const SchedulerInfo& GetSchedulerInfo(Scheduler scheduler) { return *kSchedulers[static_cast<int32_t>(scheduler)]; }

int32_t NumSchedulers() { return static_cast<int32_t>(std::size(kSchedulers)); }

std::string_view NameOf(Scheduler scheduler) { return GetSchedulerInfo(scheduler).traits.name; }

Planner::Planner(const Topology& topology, Scheduler scheduler, int64_t row_bytes)
    : topology_(topology),
      scheduler_(scheduler),
      row_bytes_(row_bytes),
      settings_hash_(SettingsHash(topology, scheduler, row_bytes)),
      schedule_(GetSchedulerInfo(scheduler).make(topology, row_bytes)) {}
Planner::~Planner() = default;

uint64_t Planner::HashWith(const int64_t* traffic) const {
  return HashInt64(traffic, BlocksOf(topology_), settings_hash_);
}

void Planner::Plan(const int64_t* traffic, uint64_t hash) {
  if (!planned(hash)) return MakePlan(traffic, hash, nullptr);
  traffic_ = traffic;
}

void Planner::PlanWith(const int64_t* traffic, const MatchingList& matchings) {
  MakePlan(traffic, HashOf(matchings, HashWith(traffic)), &matchings);
}

void Planner::MakePlan(const int64_t* traffic, uint64_t hash, const MatchingList* given) {
  // If memory runs out half-way, nothing has been planned.
  traffic_ = nullptr;
  schedule_->Plan(traffic, given);
  // Blocks are looked at one by one only where sums of them do not say enough.
  blocks_fit_int32_ =
      FitsInt32(schedule_->block_bound()) || std::all_of(traffic, traffic + BlocksOf(topology_), FitsInt32);
  uint64_t staging = 0;
  for (int32_t server = 0; server < topology_.servers; ++server) {
    staging |= static_cast<uint64_t>(schedule_->StagingRows(server));
  }
  staging_fits_int32_ = staging >> 31 == 0;
  hash_ = hash;
  traffic_ = traffic;
}

Scheduler Planner::chosen() const { return schedule_->chosen(scheduler_); }
int32_t Planner::num_stages() const { return schedule_->num_stages(); }
Matched Planner::matched() const { return schedule_->matched(); }
const std::vector<Choice>* Planner::choices() const { return schedule_->choices(); }

TransferRange Planner::DeviceTransfers(int32_t device) {
  buffer_.Clear();
  try {
    schedule_->Append(traffic_, device, &buffer_);
  } catch (...) {
    traffic_ = nullptr;  // what was planned is only half prepared
    throw;
  }
  return buffer_.range();
}

int64_t Planner::StagingRows(int32_t device) const { return schedule_->StagingRows(topology_.server_of(device)); }

double Planner::LowerBound() const { return LowerBoundSeconds(topology_, row_bytes_, traffic_); }

double Planner::PlanningTime() const {
  const Picoseconds taken = GetSchedulerInfo(chosen()).planning.Of(topology_);
  return ToSeconds(taken + schedule_->ChoosingTime());
}

// Rounding, and prices beyond what integers hold, must not make a plan look faster than anything can be.
double Planner::PredictedTime() {
  return std::max(ToSeconds(schedule_->PredictedTime(traffic_)), LowerBound()) + PlanningTime();
}

}  // namespace fastjax::planner
