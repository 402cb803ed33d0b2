#include "backends/network/message_schedule.h"

#include <algorithm>
#include <utility>

namespace fastjax::network {

void MessageSchedule::Begin(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
                            const GroupTraffic& traffic) {
  site_ = &site;
  group_ = group;
  args_ = &args;
  traffic_ = &traffic;
  sums_ = false;
  reach_.here.resize(site.group_size);
  reach_.domain_of.resize(site.group_size);
  for (int32_t rank = site.group_size - 1; rank >= 0; --rank) {
    reach_.domain_of[rank] = site.process_of[site.partition(group, site.position_at[rank])];
    reach_.here[rank] = reach_.domain_of[rank] == process ? 1 : 0;
    if (reach_.here[rank] != 0) first_here_ = rank;
  }
  lowering_.Clear();
  rows_.clear();
  rounds_.clear();
  queues_.clear();
  gates_.clear();
  iovs_.clear();
  copies_.clear();
}

Status MessageSchedule::Build(const CallSite& site, int32_t group, int32_t process,
                              const std::vector<ExchangeArgs>& args, const DevicePlans& plans,
                              const GroupTraffic& traffic) {
  Begin(site, group, process, args, traffic);
  placement_.Begin(site, args, Here().row_bytes, traffic);
  if (Status status = placement_.TakeStaging(plans); !status.ok()) return status;
  if (Status status = lowering_.Lower(reach_, plans, placement_); !status.ok()) return status;
  lowering_.LinkGates();
  for (const Step& step : steps()) {
    AddStep(step);
    AddRows(step);
  }
  FindQueues();
  LinkGates();
  return Status::Ok();
}

int32_t MessageSchedule::QueueOf(const Step& step) const {
  const int32_t kind = static_cast<int32_t>(step.action) * kPhases + static_cast<int32_t>(step.phase);
  return kind * static_cast<int32_t>(lowering_.devices().size()) + lowering_.NumberOf(step.here);
}

// Begins a round unless the step belongs to the last one.
void MessageSchedule::AddStep(const Step& step) {
  const int32_t queue = QueueOf(step);
  const auto index = static_cast<int32_t>(rows_.size());
  if (rounds_.empty() || rounds_.back().queue != queue || steps()[index - 1].stage != step.stage) {
    rounds_.emplace_back() = {index, 0, queue, step.waits};
  }
  ++rounds_.back().steps;
  const size_t first = step.action == Action::kCopy ? copies_.size() : iovs_.size();
  rows_.emplace_back() = {static_cast<int32_t>(rounds_.size()) - 1, static_cast<int32_t>(first), 0, 0};
}

void MessageSchedule::AddRows(const Step& step) {
  for (const planner::Transfer& transfer : lowering_.TransfersOf(step)) {
    switch (step.action) {
      case Action::kReceive:
        placement_.ForEachDestination(transfer, [this](std::byte* data, int64_t bytes) { AddIov(data, bytes); });
        break;
      case Action::kSend:
        placement_.ForEachSource(transfer, [this](const std::byte* data, int64_t bytes) {
          AddIov(const_cast<std::byte*>(data), bytes);  // NOLINT(*-const-cast): sends only read what iovs name
        });
        break;
      case Action::kCopy:
        placement_.ForEachCopy(transfer, [this](const CopyOp& op) { AddCopy(op); });
        break;
    }
  }
}

void MessageSchedule::AddIov(std::byte* data, int64_t bytes) {
  StepRows& step = rows_.back();
  step.bytes += bytes;
  if (step.count > 0) {
    Iov& last = iovs_.back();
    if (static_cast<std::byte*>(last.data) + last.bytes == data) {
      last.bytes += static_cast<size_t>(bytes);
      return;
    }
  }
  iovs_.emplace_back() = {data, static_cast<size_t>(bytes)};
  ++step.count;
}

void MessageSchedule::AddCopy(const CopyOp& op) {
  StepRows& step = rows_.back();
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

void MessageSchedule::FindQueues() {
  constexpr size_t kKinds = size_t{kActions} * size_t{kPhases};
  queues_.assign(kKinds * lowering_.devices().size(), Queue{0, 0});
  for (size_t i = 0; i < rounds_.size(); ++i) {
    Queue& queue = queues_[rounds_[i].queue];
    if (queue.rounds++ == 0) queue.first_round = static_cast<int32_t>(i);
  }
}

void MessageSchedule::LinkGates() {
  for (const int32_t missing : lowering_.gates()) gates_.emplace_back() = {missing, -1, -1};
  for (size_t i = 0; i < rounds_.size(); ++i) {
    const Round& round = rounds_[i];
    if (round.waits < 0) continue;
    const bool copies = steps()[round.first_step].action == Action::kCopy;
    (copies ? gates_[round.waits].copies : gates_[round.waits].sends) = copies ? static_cast<int32_t>(i) : round.queue;
  }
}

void MessageSchedule::Release() {
  placement_.Release();
  if (arrivals_.bytes() > 0) StagingPool::Get().Return(std::move(arrivals_));
  arrivals_ = {};
}

Route MessageSchedule::RouteOf(const Step& step) const {
  const int32_t here = site_->partition(group_, site_->position_at[step.here]);
  const int32_t there = site_->partition(group_, site_->position_at[step.peer]);
  return {site_->process_of[there], site_->rail_of[here], site_->rail_of[there]};
}

uint64_t MessageSchedule::TagOf(const Step& step) const {
  const bool receives = step.action == Action::kReceive;
  const int32_t sender = receives ? step.peer : step.here;
  const int32_t receiver = receives ? step.here : step.peer;
  const auto pair =
      static_cast<uint64_t>(receiver) * static_cast<uint64_t>(site_->group_size) + static_cast<uint64_t>(sender);
  return pair * kPhases + static_cast<uint64_t>(step.phase);
}

}  // namespace fastjax::network
