#include "planner/planner.h"

#include <iterator>

#include "planner/cost.h"
#include "planner/hash.h"
#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

// In the order of the enumeration.
constexpr SchedulerInfo kSchedulers[] = {
    {"direct", Execution::kAtOnce, MakeDirect, MaxEntriesOneTransferPerPeer},
    {"spreadout", Execution::kStaged, MakeSpreadout, MaxEntriesOneTransferPerPeer},
    {"fast", Execution::kStaged, MakeFast, MaxEntriesFast},
};

uint64_t SettingsHash(const Topology& topology, Scheduler scheduler, int64_t row_bytes) {
  const int64_t settings[] = {topology.servers,
                              topology.devices_per_server,
                              topology.scale_up_bandwidth,
                              topology.scale_out_bandwidth,
                              topology.scale_up_latency_ns,
                              topology.scale_out_latency_ns,
                              static_cast<int64_t>(scheduler),
                              row_bytes};
  return HashInt64(settings, std::size(settings), 0);
}

}  // namespace

const SchedulerInfo& GetSchedulerInfo(Scheduler scheduler) { return kSchedulers[static_cast<int32_t>(scheduler)]; }

const std::vector<std::string_view>& SchedulerNames() {
  static const auto& names = *new std::vector<std::string_view>([] {
    std::vector<std::string_view> all;
    for (const SchedulerInfo& info : kSchedulers) all.push_back(info.name);
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
        traffic(static_cast<size_t>(t.devices()) * t.devices()),
        schedule(GetSchedulerInfo(s).make(t, bytes)),
        cost(t, bytes) {}

  Topology topology;
  Scheduler scheduler;
  int64_t row_bytes;
  uint64_t settings_hash;
  std::vector<int64_t> traffic;
  uint64_t hash = 0;
  bool blocks_fit_int32 = true;
  bool staging_fits_int32 = true;
  std::unique_ptr<Schedule> schedule;
  CostModel cost;
  TransferBuffer buffer;
};

Planner::Planner(const Topology& topology, Scheduler scheduler, int64_t row_bytes)
    : state_(std::make_unique<State>(topology, scheduler, row_bytes)) {
  Plan(state_->traffic.data());
}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

void Planner::Plan(const int64_t* traffic) {
  State& state = *state_;
  int64_t* copy = state.traffic.data();
  uint64_t seen = 0;
  state.hash = LaneHash(state.settings_hash).Finish(static_cast<int64_t>(state.traffic.size()), [&](int64_t i) {
    copy[i] = traffic[i];
    seen |= static_cast<uint64_t>(traffic[i]);
    return static_cast<uint64_t>(traffic[i]);
  });
  state.blocks_fit_int32 = seen >> 31 == 0;
  state.schedule->Plan(copy);
  seen = 0;
  for (int32_t device = 0; device < state.topology.devices(); ++device) {
    seen |= static_cast<uint64_t>(state.schedule->StagingRows(device));
  }
  state.staging_fits_int32 = seen >> 31 == 0;
}

const Topology& Planner::topology() const { return state_->topology; }
Scheduler Planner::scheduler() const { return state_->scheduler; }
const int64_t* Planner::traffic() const { return state_->traffic.data(); }
int32_t Planner::num_stages() const { return state_->schedule->num_stages(); }
uint64_t Planner::hash() const { return state_->hash; }
bool Planner::blocks_fit_int32() const { return state_->blocks_fit_int32; }
bool Planner::staging_fits_int32() const { return state_->staging_fits_int32; }

void Planner::AppendTransfers(std::vector<Transfer>* out) {
  const TransferRange all = DeviceTransfers(kEveryDevice);
  out->insert(out->end(), all.begin(), all.end());
}

TransferRange Planner::DeviceTransfers(int32_t device) {
  state_->buffer.Clear();
  state_->schedule->Append(device, &state_->buffer);
  return state_->buffer.range();
}

int64_t Planner::StagingRows(int32_t device) const { return state_->schedule->StagingRows(device); }

double Planner::LowerBound() const {
  return LowerBoundSeconds(state_->topology, state_->row_bytes, state_->traffic.data());
}

double Planner::PredictedTime() {
  const TransferRange all = DeviceTransfers(kEveryDevice);
  return state_->cost.Seconds(GetSchedulerInfo(state_->scheduler).execution, all);
}

}  // namespace fastjax::planner
