#include "execution/lowering.h"

#include <algorithm>
#include <tuple>

namespace fastjax {

using planner::Phase;
using planner::Transfer;

void Lowering::Clear() {
  pipeline_ = {};
  plan_pipeline_steps_ = 1;
  devices_.clear();
  taken_.clear();
  stages_.Clear();
  pipeline_steps_.Clear();
  entries_.clear();
  device_end_.clear();
  sorted_transfers_.clear();
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
  pipeline_ = Pipeline(plans);
  if (!pipeline_.possible()) return placement.WrongPlan();
  for (const int32_t rank : devices_) {
    const DevicePlan& plan = plans[static_cast<size_t>(rank)];
    if (!Take(reach, plan, rank, placement)) return placement.WrongPlan();
    device_end_.push_back(entries_.size());
  }
  if (plan_pipeline_steps_ > Pipeline::kMaxSteps) return placement.WrongPlan();
  if (placement.row_bytes() == 0) {  // nothing to move
    stages_.Clear();
    return Status::Ok();
  }
  Arrange();
  return Status::Ok();
}

// The plans of both ends have a transfer. Both ends have a step for a message; where they reach each other's
// memory, only the sender has one, a copy. Returns false where `placement` refuses a transfer.
bool Lowering::Take(const Reach& reach, const DevicePlan& plan, int32_t rank, const Placement& placement) {
  return plan.ForEachTransfer([&](const Transfer& transfer) {
    plan_pipeline_steps_ = std::max(plan_pipeline_steps_, pipeline_.StepOf(transfer.phase, transfer.stage) + 1);
    const bool copies = reach.Copies(transfer.src, transfer.dst);
    if (transfer.src != rank && (transfer.dst != rank || copies)) return true;
    if (!placement.Allows(transfer)) return false;
    // The entry is written in place, field by field. push_back would make a temporary and copy it in larger parts, for
    // which the processor waits until all fields have left its store buffer. This holds wherever steps are listed.
    taken_.emplace_back() = transfer;
    AddEntry(transfer.src != rank ? Action::kReceive
             : copies             ? Action::kCopy
                                  : Action::kSend,
             transfer, taken_.size() - 1);
    return true;
  });
}

void Lowering::AddEntry(Action action, const Transfer& transfer, size_t at) {
  const int32_t kind = static_cast<int32_t>(action) * kPhases + static_cast<int32_t>(transfer.phase);
  const int32_t peer = action == Action::kReceive ? transfer.src : transfer.dst;
  entries_.emplace_back() = {static_cast<int32_t>(at), kind, transfer.stage, peer};
  stages_.Add(transfer.stage);
}

void Lowering::LowerBlocks(const Reach& reach, const GroupTraffic& traffic, const Placement& placement) {
  Begin(reach);
  if (placement.row_bytes() > 0) {
    for (int32_t origin = 0; origin < ranks_; ++origin) TakeBlocks(reach, traffic, origin);
  }
  for (const int32_t rank : devices_) {
    for (size_t block = 0; block < taken_.size(); ++block) {
      if (taken_[block].src == rank) AddEntry(Action::kSend, taken_[block], block);
      if (taken_[block].dst == rank) AddEntry(Action::kReceive, taken_[block], block);
    }
    device_end_.push_back(entries_.size());
  }
  Arrange();
}

// Takes the blocks of one origin whose origin or target is local.
void Lowering::TakeBlocks(const Reach& reach, const GroupTraffic& traffic, int32_t origin) {
  const auto take = [&](int32_t target) {
    const int64_t rows = traffic.rows(origin, target);
    if (rows == 0 || reach.Copies(origin, target)) return;
    taken_.push_back(
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

void Lowering::Arrange() {
  stages_.Number();
  kind_begin_.clear();
  size_t first = 0;
  for (const size_t last : device_end_) {
    SortDevice(first, last);
    first = last;
  }
  FindPipelineSteps();
  MakeSteps();
}

// Sorts the entries of one device, which are few enough to stay in a processor's cache, by kind, stage and peer.
// Entries that agree in all of them stay in the order of the plan.
void Lowering::SortDevice(size_t first, size_t last) {
  const int32_t stages = stages_.count();
  for (size_t i = first; i < last; ++i)
    entries_[i].key = entries_[i].key * stages + stages_.NumberOf(entries_[i].stage);
  if (last - first <= kFewEntries) {
    const auto order = [](const Entry& entry) { return std::tie(entry.key, entry.peer, entry.transfer); };
    std::sort(entries_.begin() + static_cast<ptrdiff_t>(first), entries_.begin() + static_cast<ptrdiff_t>(last),
              [&](const Entry& a, const Entry& b) { return order(a) < order(b); });
  } else {
    scratch_.resize(last - first);
    SortBy(ranks_, &entries_[first], &scratch_[0], last - first, [](const Entry& entry) { return entry.peer; });
    SortBy(kKinds * stages, &scratch_[0], &entries_[first], last - first, [](const Entry& entry) { return entry.key; });
  }
  for (int32_t kind = 0; kind < kKinds; ++kind) {
    while (first < last && entries_[first].key < kind * stages) ++first;
    kind_begin_.push_back(first);
  }
  kind_begin_.push_back(last);
}

template <typename Key>
void Lowering::SortBy(int32_t keys, const Entry* from, Entry* to, size_t count, Key key) {
  begin_.assign(static_cast<size_t>(keys) + 1, 0);
  for (size_t i = 0; i < count; ++i) ++begin_[static_cast<size_t>(key(from[i])) + 1];
  for (size_t k = 1; k < begin_.size(); ++k) begin_[k] += begin_[k - 1];
  for (size_t i = 0; i < count; ++i) to[begin_[static_cast<size_t>(key(from[i]))]++] = from[i];
}

void Lowering::MakeSteps() {
  sorted_transfers_.reserve(entries_.size());
  for (int32_t kind = 0; kind < kKinds; ++kind) {
    for (size_t device = 0; device < devices_.size(); ++device) {
      const size_t* const begin = &kind_begin_[device * (kKinds + 1) + static_cast<size_t>(kind)];
      AddSteps(kind, devices_[device], begin[0], begin[1]);
    }
  }
}

// Adds the steps of one device and kind.
void Lowering::AddSteps(int32_t kind, int32_t here, size_t first, size_t last) {
  const auto action = static_cast<Action>(kind / kPhases);
  const auto phase = static_cast<Phase>(kind % kPhases);
  const int32_t stages = stages_.count();
  for (size_t i = first; i < last; ++i) {
    const Entry& entry = entries_[i];
    if (i == first || entries_[i - 1].key != entry.key || entries_[i - 1].peer != entry.peer) {
      const int32_t stage = entry.key - kind * stages;
      const int32_t pipeline_step = pipeline_step_of_[PlaceOf(phase, stage)];
      steps_.emplace_back() = {
          action, phase, stage, pipeline_step, here, entry.peer, -1, -1, static_cast<int64_t>(sorted_transfers_.size()),
          0};
    }
    ++steps_.back().transfers;
    sorted_transfers_.push_back(taken_[static_cast<size_t>(entry.transfer)]);
  }
}

// Numbers the pipeline steps, by the phases and stages that have local transfers.
void Lowering::FindPipelineSteps() {
  const int32_t stages = stages_.count();
  pipeline_step_of_.assign(kPhases * stages_.values().size(), -1);
  for (const Entry& entry : entries_) pipeline_step_of_[static_cast<size_t>(entry.key % (kPhases * stages))] = 0;
  const auto for_each = [&](auto&& visit) {
    for (size_t i = 0; i < pipeline_step_of_.size(); ++i) {
      if (pipeline_step_of_[i] < 0) continue;
      const auto stage = static_cast<int32_t>(i) % stages;
      const auto phase = static_cast<Phase>(static_cast<int32_t>(i) / stages);
      visit(&pipeline_step_of_[i],
            static_cast<int32_t>(pipeline_.StepOf(phase, stages_.values()[static_cast<size_t>(stage)])));
    }
  };
  for_each([&](int32_t*, int32_t pipeline_step) { pipeline_steps_.Add(pipeline_step); });
  pipeline_steps_.Number();
  for_each([&](int32_t* of, int32_t pipeline_step) { *of = pipeline_steps_.NumberOf(pipeline_step); });
}

// Returns the gate that rows of this phase open when they have arrived at a device.
size_t Lowering::GateOf(Phase fed_by, int32_t rank, int32_t stage) const {
  const size_t kind = fed_by == Phase::kBalance ? 0 : 1;
  return (kind * devices_.size() + static_cast<size_t>(NumberOf(rank))) * stages().size() + static_cast<size_t>(stage);
}

void Lowering::LinkGates() {
  gates_.assign(2 * devices_.size() * stages().size(), 0);
  for (Step& step : steps_) {
    const bool feeds = step.phase == Phase::kBalance || step.phase == Phase::kScaleOut;
    if (feeds && step.action != Action::kSend) {
      const int32_t at = step.action == Action::kReceive ? step.here : step.peer;
      step.opens = static_cast<int32_t>(GateOf(step.phase, at, step.stage));
      ++gates_[static_cast<size_t>(step.opens)];
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

}  // namespace fastjax
