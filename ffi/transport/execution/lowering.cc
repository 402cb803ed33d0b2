#include "transport/execution/lowering.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace fastjax::transport::execution {

using planner::Phase;
using planner::Transfer;

void Numbering::Clear() {
  values_.clear();
  known_.fill(Known{});
}

void Numbering::Add(int32_t value) {
  Known& known = known_[PlaceOf(value)];
  if (known.value == value) return;
  known.value = value;
  values_.push_back(value);
}

void Numbering::Number() {
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  for (size_t i = 0; i < values_.size(); ++i) known_[PlaceOf(values_[i])] = {values_[i], static_cast<int32_t>(i)};
}

int32_t Numbering::NumberOf(int32_t value) const {
  const Known& known = known_[PlaceOf(value)];
  if (known.value == value) return known.number;
  return static_cast<int32_t>(std::lower_bound(values_.begin(), values_.end(), value) - values_.begin());
}

void Lowering::Clear() {
  plan_stages_ = 0;
  plan_pipeline_steps_ = 1;
  lead_ = 0;
  last_stage_.fill(-1);
  devices_.clear();
  blocks_.clear();
  stages_.Clear();
  pipeline_steps_.Clear();
  entries_.clear();
  steps_.clear();
  gates_.clear();
}

void Lowering::Begin(const Reach& reach) {
  Clear();
  ranks_ = static_cast<int32_t>(reach.here.size());
  number_of_.assign(reach.here.size(), -1);
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    if (reach.here[static_cast<size_t>(rank)] == 0) continue;
    number_of_[static_cast<size_t>(rank)] = static_cast<int32_t>(devices_.size());
    devices_.push_back(rank);
  }
}

Status Lowering::Lower(const Reach& reach, const DevicePlans& plans, const Placement& placement) {
  Begin(reach);
  for (const int32_t rank : devices_) {
    const DevicePlan& plan = plans[static_cast<size_t>(rank)];
    if (Status status = Take(reach, plan, rank, placement); !status.ok()) return status;
  }
  for (int32_t phase = 0; phase < kPhases; ++phase) {
    const int32_t last = last_stage_[static_cast<size_t>(phase)];
    if (last < 0) continue;
    plan_pipeline_steps_ = std::max(plan_pipeline_steps_, PipelineStepOf(static_cast<Phase>(phase), last) + 1);
  }
  // No plan has as many.
  if (plan_pipeline_steps_ > std::numeric_limits<int32_t>::max()) return placement.Refuse();
  if (placement.row_bytes() == 0) entries_.clear();  // nothing to move
  Sort();
  MakeSteps();
  FindPipelineSteps();
  LinkGates();
  return Status::Ok();
}

// A transfer stands in the plans of both its ends. A message is of both; where one end reaches the other's memory, the
// sender copies.
Status Lowering::Take(const Reach& reach, const DevicePlan& plan, int32_t rank, const Placement& placement) {
  plan_stages_ = std::max(plan_stages_, plan.stages);
  if (plan.stages_rows()) lead_ = 1;
  for (const Transfer& transfer : plan.transfers) {
    int32_t& last = last_stage_[static_cast<size_t>(transfer.phase)];
    last = std::max(last, transfer.stage);
    const bool copies = reach.Copies(transfer.src, transfer.dst);
    if (transfer.src != rank && (transfer.dst != rank || copies)) continue;
    if (Status status = placement.Check(transfer); !status.ok()) return status;
    AddEntry(transfer.src != rank ? Action::kReceive : copies ? Action::kCopy : Action::kSend, rank, transfer);
  }
  return Status::Ok();
}

void Lowering::AddEntry(Action action, int32_t here, const Transfer& transfer) {
  const int32_t kind = static_cast<int32_t>(action) * kPhases + static_cast<int32_t>(transfer.phase);
  entries_.push_back({&transfer, kind * static_cast<int32_t>(devices_.size()) + NumberOf(here), transfer.stage,
                      action == Action::kReceive ? transfer.src : transfer.dst});
  stages_.Add(transfer.stage);
}

void Lowering::LowerBlocks(const Reach& reach, const GroupTraffic& traffic, const Placement& placement) {
  Begin(reach);
  if (placement.row_bytes() > 0) {
    for (int32_t origin = 0; origin < ranks_; ++origin) TakeBlocks(reach, traffic, origin);
  }
  // Not before all of them are in their places.
  for (const Transfer& block : blocks_) {
    if (NumberOf(block.src) >= 0) AddEntry(Action::kSend, block.src, block);
    if (NumberOf(block.dst) >= 0) AddEntry(Action::kReceive, block.dst, block);
  }
  Sort();
  MakeSteps();
  FindPipelineSteps();
  LinkGates();
}

// Of one origin, those that begin or end here.
void Lowering::TakeBlocks(const Reach& reach, const GroupTraffic& traffic, int32_t origin) {
  const auto take = [&](int32_t target) {
    const int64_t rows = traffic.rows(origin, target);
    if (rows == 0 || reach.Copies(origin, target)) return;
    blocks_.push_back(
        {Phase::kLocal, -1, origin, target, origin, target, 0, rows, Transfer::kInPlace, Transfer::kInPlace});
  };
  if (NumberOf(origin) < 0) {
    for (const int32_t target : devices_) take(target);
  } else {
    for (int32_t target = 0; target < ranks_; ++target) take(target);
  }
}

int32_t Lowering::ArrivalOf(int32_t origin, int32_t target) const {
  const auto key = [](const Step& step) { return std::tuple(step.action, step.here, step.peer); };
  const auto wanted = std::tuple(Action::kReceive, target, origin);
  const auto found = std::lower_bound(steps_.begin(), steps_.end(), wanted,
                                      [&](const Step& step, const auto& other) { return key(step) < other; });
  if (found == steps_.end() || key(*found) != wanted) return -1;
  return static_cast<int32_t>(found - steps_.begin());
}

template <typename Key>
void Lowering::SortBy(int32_t keys, Key key) {
  if (keys < 2) return;
  begin_.assign(static_cast<size_t>(keys) + 1, 0);
  for (const Entry& entry : entries_) ++begin_[static_cast<size_t>(key(entry)) + 1];
  for (size_t k = 1; k < begin_.size(); ++k) begin_[k] += begin_[k - 1];
  sorted_.resize(entries_.size());
  for (const Entry& entry : entries_) sorted_[static_cast<size_t>(begin_[static_cast<size_t>(key(entry))]++)] = entry;
  entries_.swap(sorted_);
}

// What agrees in all keys stays in the order of the plan.
void Lowering::Sort() {
  stages_.Number();
  for (Entry& entry : entries_) entry.stage = stages_.NumberOf(entry.stage);
  SortBy(ranks_, [](const Entry& entry) { return entry.peer; });
  SortBy(stages_.count(), [](const Entry& entry) { return entry.stage; });
  SortBy(kActions * kPhases * static_cast<int32_t>(devices_.size()), [](const Entry& entry) { return entry.group; });
}

void Lowering::MakeSteps() {
  steps_.clear();
  sorted_transfers_.clear();
  const auto devices = static_cast<int32_t>(devices_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const Entry* const before = i == 0 ? nullptr : &entries_[i - 1];
    if (before == nullptr || before->group != entry.group || before->stage != entry.stage ||
        before->peer != entry.peer) {
      const int32_t kind = entry.group / devices;
      steps_.push_back({static_cast<Action>(kind / kPhases), static_cast<Phase>(kind % kPhases), entry.stage, 0,
                        devices_[static_cast<size_t>(entry.group % devices)], entry.peer, -1, -1,
                        static_cast<int64_t>(i), 0});
    }
    ++steps_.back().transfers;
    sorted_transfers_.push_back(entry.transfer);
  }
}

// What feeds a stage comes one pipeline step before it, and what drains it one after, so that three stages are under
// way at a time. Where no row rests on the way, nothing feeds or drains them.
int64_t Lowering::PipelineStepOf(Phase phase, int32_t stage) const {
  switch (phase) {
    case Phase::kLocal:
      return 0;
    case Phase::kBalance:
      return stage;
    case Phase::kScaleOut:
      return int64_t{stage} + lead_;
    case Phase::kRedistribute:
      return int64_t{stage} + lead_ + 1;
  }
  return 0;
}

void Lowering::FindPipelineSteps() {
  const auto of = [this](const Step& step) {
    return static_cast<int32_t>(PipelineStepOf(step.phase, stages()[static_cast<size_t>(step.stage)]));
  };
  for (const Step& step : steps_) pipeline_steps_.Add(of(step));
  pipeline_steps_.Number();
  for (Step& step : steps_) step.pipeline_step = pipeline_steps_.NumberOf(of(step));
}

// The gate that rows of this phase open when they have come to a device.
size_t Lowering::GateOf(Phase fed_by, int32_t rank, int32_t stage) const {
  const size_t kind = fed_by == Phase::kBalance ? 0 : 1;
  return (kind * devices_.size() + static_cast<size_t>(NumberOf(rank))) * stages().size() + static_cast<size_t>(stage);
}

void Lowering::LinkGates() {
  gates_.assign(2 * devices_.size() * stages().size(), 0);
  for (Step& step : steps_) {
    if (step.phase == Phase::kBalance || step.phase == Phase::kScaleOut) {
      // What is sent, or copied to a device of another process, opens a gate there.
      const int32_t at = step.action == Action::kReceive ? step.here : step.peer;
      if (step.action != Action::kSend && NumberOf(at) >= 0) {
        step.opens = static_cast<int32_t>(GateOf(step.phase, at, step.stage));
        ++gates_[static_cast<size_t>(step.opens)];
      }
    }
    const bool hands_on = step.phase == Phase::kScaleOut || step.phase == Phase::kRedistribute;
    if (!hands_on || step.action == Action::kReceive) continue;
    const Phase fed_by = step.phase == Phase::kScaleOut ? Phase::kBalance : Phase::kScaleOut;
    step.waits = static_cast<int32_t>(GateOf(fed_by, step.here, step.stage));
  }
}

const std::vector<int32_t>& Lowering::ByPipelineStep() {
  begin_.assign(static_cast<size_t>(pipeline_steps_.count()) + 1, 0);
  for (const Step& step : steps_) ++begin_[static_cast<size_t>(step.pipeline_step) + 1];
  for (size_t k = 1; k < begin_.size(); ++k) begin_[k] += begin_[k - 1];
  by_pipeline_step_.resize(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    auto& next = begin_[static_cast<size_t>(steps_[i].pipeline_step)];
    by_pipeline_step_[static_cast<size_t>(next++)] = static_cast<int32_t>(i);
  }
  return by_pipeline_step_;
}

}  // namespace fastjax::transport::execution
