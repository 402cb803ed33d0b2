#include "transport/network/program.h"

#include <algorithm>
#include <utility>

#include "planner/table.h"

namespace fastjax::transport::network {
namespace {

using execution::CopyOp;
using planner::Phase;
using planner::Transfer;

constexpr int32_t kPhases = 4;
constexpr int32_t kActions = 3;

}  // namespace

int32_t Program::QueueOf(Action action, Phase phase, int32_t device) const {
  const int32_t kind = static_cast<int32_t>(action) * kPhases + static_cast<int32_t>(phase);
  return kind * static_cast<int32_t>(devices_.size()) + device;
}

void Program::Begin(const CallSite& site, int32_t group, int32_t process) {
  site_ = &site;
  group_ = group;
  sums_ = false;
  plan_stages_ = 0;
  devices_.clear();
  device_at_.assign(site.group_size, -1);
  index_in_process_.resize(site.group_size);
  next_index_.assign(site.process_of.size(), 0);  // as many processes as devices at most
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const int32_t owner = site.process_of[site.partition(group, site.position_at[rank])];
    if (static_cast<size_t>(owner) >= next_index_.size()) next_index_.resize(static_cast<size_t>(owner) + 1, 0);
    index_in_process_[rank] = next_index_[owner]++;
    if (owner != process) continue;
    device_at_[rank] = static_cast<int32_t>(devices_.size());
    devices_.push_back(rank);
  }
  stages_.clear();
  entries_.clear();
  steps_.clear();
  rounds_.clear();
  queues_.assign(static_cast<size_t>(kActions * kPhases) * devices_.size(), Queue{0, 0});
  gates_.clear();
  pieces_.clear();
  copies_.clear();
}

Status Program::Build(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
                      const std::vector<const int32_t*>& tables, const GroupTraffic& traffic, bool backwards) {
  Begin(site, group, process);
  args_ = &args;
  traffic_ = &traffic;
  if (devices_.empty()) return Status::Ok();
  if (Status status = placement_.Begin(site, args, Here().row_bytes, tables, traffic); !status.ok()) return status;
  if (Status status = TakeEntries(tables, backwards); !status.ok()) return status;
  if (placement_.row_bytes() == 0) return Status::Ok();  // nothing to move
  SortEntries();
  for (const Entry& entry : sorted_) {
    const planner::TableView table(tables[entry.rank]);
    Transfer transfer = table.entry(entry.index);
    if (backwards) transfer = planner::Transposed(transfer, table.stages());
    const auto kind = static_cast<size_t>(entry.queue) / devices_.size();
    AddStep(static_cast<Action>(kind / kPhases), transfer, entry.stage);
    AddRows(transfer);
  }
  FindQueues();
  LinkGates();
  return Status::Ok();
}

Status Program::TakeEntries(const std::vector<const int32_t*>& tables, bool backwards) {
  for (const int32_t rank : devices_) {
    const planner::TableView table(tables[rank]);
    plan_stages_ = std::max(plan_stages_, table.stages());
    for (int32_t i = 0; i < table.entries(); ++i) {
      Transfer transfer = table.entry(i);
      if (backwards) transfer = planner::Transposed(transfer, table.stages());
      // A transfer stands in the tables of both its ends; where both are here, the sender's counts.
      if (transfer.src != rank && (transfer.dst != rank || device_at_[transfer.src] >= 0)) continue;
      if (Status status = placement_.Check(transfer); !status.ok()) return status;
      TakeEntry(rank, i, transfer);
    }
  }
  NumberStages();
  return Status::Ok();
}

void Program::TakeEntry(int32_t rank, int32_t index, const Transfer& transfer) {
  const int32_t peer = transfer.src == rank ? transfer.dst : transfer.src;
  const Action action = transfer.src != rank ? Action::kReceive : device_at_[peer] < 0 ? Action::kSend : Action::kCopy;
  entries_.push_back({QueueOf(action, transfer.phase, device_at_[rank]), transfer.stage, peer, rank, index});
  if (stages_.empty() || stages_.back() != transfer.stage) stages_.push_back(transfer.stage);
}

// Only stages that something happens in: what a table says of their number must not decide how much memory is taken.
void Program::NumberStages() {
  std::sort(stages_.begin(), stages_.end());
  stages_.erase(std::unique(stages_.begin(), stages_.end()), stages_.end());
  auto at = stages_.begin();
  for (Entry& entry : entries_) {
    if (*at != entry.stage) at = std::lower_bound(stages_.begin(), stages_.end(), entry.stage);
    entry.stage = static_cast<int32_t>(at - stages_.begin());
  }
}

template <typename Key>
void Program::SortBy(int32_t keys, Key key) {
  begin_.assign(static_cast<size_t>(keys) + 1, 0);
  for (const Entry& entry : entries_) ++begin_[static_cast<size_t>(key(entry)) + 1];
  for (size_t k = 1; k < begin_.size(); ++k) begin_[k] += begin_[k - 1];
  sorted_.resize(entries_.size());
  for (const Entry& entry : entries_) sorted_[begin_[key(entry)]++] = entry;
}

// By queue, stage and peer; those that agree in all of them stay in the order of the plan, which is the same at both
// ends.
void Program::SortEntries() {
  SortBy(site_->group_size, [](const Entry& entry) { return entry.peer; });
  entries_.swap(sorted_);
  SortBy(static_cast<int32_t>(stages_.size()), [](const Entry& entry) { return entry.stage; });
  entries_.swap(sorted_);
  SortBy(static_cast<int32_t>(queues_.size()), [](const Entry& entry) { return entry.queue; });
}

// Begins a step, and a round, unless the transfer belongs to the last one.
void Program::AddStep(Action action, const Transfer& transfer, int32_t stage) {
  const bool receives = action == Action::kReceive;
  const int32_t device = device_at_[receives ? transfer.dst : transfer.src];
  const int32_t peer = receives ? transfer.src : transfer.dst;
  const int32_t queue = QueueOf(action, transfer.phase, device);
  const bool same_round = !steps_.empty() && rounds_.back().queue == queue && steps_.back().stage == stage;
  if (same_round && steps_.back().peer == peer) return;
  if (!same_round) rounds_.push_back({static_cast<int32_t>(steps_.size()), 0, queue, -1});
  ++rounds_.back().steps;
  const size_t first = action == Action::kCopy ? copies_.size() : pieces_.size();
  steps_.push_back({action, transfer.phase, stage, device, peer, static_cast<int32_t>(rounds_.size()) - 1, -1,
                    static_cast<int32_t>(first), 0, 0});
}

void Program::AddRows(const Transfer& transfer) {
  switch (steps_.back().action) {
    case Action::kReceive:
      return placement_.ForEachDestination(transfer, [this](std::byte* data, int64_t bytes) { AddPiece(data, bytes); });
    case Action::kSend:
      return placement_.ForEachSource(transfer, [this](const std::byte* data, int64_t bytes) {
        AddPiece(const_cast<std::byte*>(data), bytes);  // NOLINT(*-const-cast): sends only read what pieces name
      });
    case Action::kCopy:
      return placement_.ForEachCopy(transfer, [this](const CopyOp& op) { AddCopy(op); });
  }
}

void Program::AddPiece(std::byte* data, int64_t bytes) {
  Step& step = steps_.back();
  step.bytes += bytes;
  if (step.count > 0) {
    Piece& last = pieces_.back();
    if (static_cast<std::byte*>(last.data) + last.bytes == data) {
      last.bytes += static_cast<size_t>(bytes);
      return;
    }
  }
  pieces_.push_back({data, static_cast<size_t>(bytes)});
  ++step.count;
}

void Program::AddCopy(const CopyOp& op) {
  Step& step = steps_.back();
  step.bytes += op.bytes;
  if (step.count > 0) {
    CopyOp& last = copies_.back();
    if (last.dst + last.bytes == op.dst && last.src + last.bytes == op.src && last.destination == op.destination) {
      last.bytes += op.bytes;
      return;
    }
  }
  copies_.push_back(op);
  ++step.count;
}

void Program::FindQueues() {
  for (size_t i = 0; i < rounds_.size(); ++i) {
    Queue& queue = queues_[rounds_[i].queue];
    if (queue.rounds++ == 0) queue.first_round = static_cast<int32_t>(i);
  }
}

// The gate that rows of this phase open when they have come to a device.
int32_t Program::GateOf(Phase fed_by, int32_t device, int32_t stage) const {
  const auto devices = static_cast<int32_t>(devices_.size());
  const int32_t kind = fed_by == Phase::kBalance ? 0 : 1;
  return (kind * devices + device) * static_cast<int32_t>(stages_.size()) + stage;
}

void Program::LinkGates() {
  gates_.assign(2 * devices_.size() * stages_.size(), Gate{});
  for (Step& step : steps_) {
    if (step.phase == Phase::kBalance || step.phase == Phase::kScaleOut) {
      const int32_t at = step.action == Action::kReceive ? step.device
                         : step.action == Action::kCopy  ? device_at_[step.peer]
                                                         : -1;
      if (at >= 0) {
        step.opens = GateOf(step.phase, at, step.stage);
        ++gates_[step.opens].missing;
      }
    }
    const bool hands_on = step.phase == Phase::kScaleOut || step.phase == Phase::kRedistribute;
    if (!hands_on || step.action == Action::kReceive) continue;
    Round& round = rounds_[step.round];
    round.waits = GateOf(step.phase == Phase::kScaleOut ? Phase::kBalance : Phase::kScaleOut, step.device, step.stage);
    Gate& gate = gates_[round.waits];
    if (step.action == Action::kSend) gate.sends = round.queue;
    if (step.action == Action::kCopy) gate.copies = step.round;
  }
}

void Program::Release() {
  placement_.Release();
  if (arrivals_.bytes() > 0) execution::StagingPool::Get().Return(std::move(arrivals_));
  arrivals_ = {};
}

Route Program::RouteOf(const Step& step) const {
  const int32_t here = site_->partition(group_, site_->position_at[devices_[step.device]]);
  const int32_t there = site_->partition(group_, site_->position_at[step.peer]);
  return {site_->process_of[there], site_->rail_of[here], site_->rail_of[there]};
}

uint64_t Program::TagOf(const Step& step) const {
  const bool receives = step.action == Action::kReceive;
  const int32_t sender = receives ? step.peer : devices_[step.device];
  const int32_t receiver = receives ? devices_[step.device] : step.peer;
  const auto pair = static_cast<uint64_t>(index_in_process_[receiver]) * static_cast<uint64_t>(site_->group_size) +
                    static_cast<uint64_t>(sender);
  return pair * kPhases + static_cast<uint64_t>(step.phase);
}

}  // namespace fastjax::transport::network
