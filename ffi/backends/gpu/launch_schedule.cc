#include "backends/gpu/launch_schedule.h"

#include <algorithm>
#include <tuple>

#include "execution/sum_job.h"

namespace fastjax::gpu {
namespace {

using planner::Transfer;

// A launch, or none, and events for each: what a plan says must not decide how long that takes.
constexpr int64_t kMaxPipelineSteps = 1 << 13;

// Messages begin where networks like them to.
constexpr int64_t kMessageAlignment = 256;
int64_t Aligned(int64_t bytes) { return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment; }

}  // namespace

Status LaunchSchedule::Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const DevicePlans& plans,
                             Kind kind, const GroupTraffic& traffic, const Layout& layout) {
  site_ = &site;
  args_ = &args;
  traffic_ = &traffic;
  layout_ = &layout;
  plans_ = &plans;
  pipeline_steps_ = 1;
  kind_ = kind;
  messages_.clear();
  moves_.resize(layout.calls.size());
  for (auto& moves : moves_) moves.clear();
  gathers_.resize(layout.calls.size());
  for (auto& gathers : gathers_) gathers.clear();
  // Of a device here: those of others have no types of sums, and no factors.
  const auto here = std::find_if(layout.call_of.begin(), layout.call_of.end(), [](int32_t call) { return call >= 0; });
  const ExchangeArgs& any = ArgsOf(static_cast<int32_t>(here - layout.call_of.begin()));
  types_ = any.sum_types();
  factor_bytes_ = any.factor_bytes();
  placement_.Begin(site, args, any.row_bytes, traffic);
  const auto staging = [&layout](int32_t rank, int64_t bytes) {
    const auto call = static_cast<size_t>(layout.call_of[static_cast<size_t>(rank)]);
    return layout.calls[call]->allocate(static_cast<size_t>(bytes));
  };
  Status status = sums() ? CheckSummable(site, any) : placement_.TakeStaging(plans, staging);
  return status.ok() ? Lower() : status;
}

Status LaunchSchedule::Lower() {
  const std::vector<int32_t>& calls = layout_->call_of;
  reach_.here.resize(calls.size());
  std::transform(calls.begin(), calls.end(), reach_.here.begin(), [](int32_t call) { return call < 0 ? 0 : 1; });
  reach_.domain_of.assign(layout_->domain_of.begin(), layout_->domain_of.end());
  if (sums()) {
    lowering_.LowerBlocks(reach_, *traffic_, placement_);
  } else {
    if (Status status = lowering_.Lower(reach_, *plans_, placement_); !status.ok()) return status;
  }
  if (lowering_.plan_pipeline_steps() > kMaxPipelineSteps) {
    return Status::Invalid(site_->Prefix() +
                           "the plan has more stages than a GPU transport counts; split the exchange.");
  }
  pipeline_steps_ = static_cast<int32_t>(lowering_.plan_pipeline_steps());
  if (Status status = Arrange(); !status.ok()) return status;
  return sums() ? AddAllSums() : Status::Ok();
}

// From steps to messages and moves, in four passes. Messages are measured first, since how many places a message lies
// in decides whether it needs room in a buffer; buffers are taken next, since lists hold addresses. Then steps are
// listed in order of their pipeline steps, so that what one pipeline step of a call does is contiguous in that call's
// lists: a launch takes a range of them. Last, the counts of messages become where each pipeline step's begin (a
// counting sort, whose input is in order already).
Status LaunchSchedule::Arrange() {
  lists_.assign(static_cast<size_t>(pipeline_steps_) * moves_.size(), CallStep{});
  first_message_.assign(static_cast<size_t>(pipeline_steps_) + 1, 0);
  MeasureMessages();
  const std::vector<int32_t>& order = lowering_.ByPipelineStep();
  if (Status status = TakeBuffers(order); !status.ok()) return status;
  own_sent_.clear();
  own_received_.clear();
  int32_t arranged = 0;
  for (const int32_t i : order) {
    const Step& step = lowering_.steps()[static_cast<size_t>(i)];
    const int32_t pipeline_step = PipelineStepOf(step);
    if (pipeline_step != arranged) {
      if (Status status = DeliverOwn(arranged); !status.ok()) return status;
      arranged = pipeline_step;
    }
    step.action == Action::kCopy ? AddCopies(step, pipeline_step) : MakeMessage(i, pipeline_step);
  }
  if (Status status = DeliverOwn(arranged); !status.ok()) return status;
  for (size_t pipeline_step = 0; pipeline_step < static_cast<size_t>(pipeline_steps_); ++pipeline_step)
    first_message_[pipeline_step + 1] += first_message_[pipeline_step];
  return Status::Ok();
}

void LaunchSchedule::AddCopies(const Step& step, int32_t pipeline_step) {
  const int32_t call = CallOf(step);
  CallStep& lists = ListsOf(pipeline_step, call);
  for (const Transfer& transfer : lowering_.TransfersOf(step)) {
    if (IsGathered(transfer)) {
      placement_.ForEachRun(transfer, [&](std::byte* dst, const Run& run) {
        AddGather(call, &lists.copy_gathers, dst, transfer.origin, run);
      });
      continue;
    }
    placement_.ForEachCopy(transfer, [&](const CopyOp& op) { AddMove(call, &lists.copy, op.dst, op.src, op.bytes); });
  }
}

// A message in one place is sent from there, or received there. Rows in several places are packed, since
// NCCL takes one range of memory for each message.
void LaunchSchedule::MeasureMessages() {
  const std::vector<Step>& steps = lowering_.steps();
  packing_.assign(steps.size(), Packing{});
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].action == Action::kCopy) break;  // messages come before copies
    for (const Transfer& transfer : lowering_.TransfersOf(steps[i])) Measure(steps[i], transfer, &packing_[i]);
  }
}

void LaunchSchedule::Measure(const Step& step, const Transfer& transfer, Packing* packing) const {
  packing->bytes += transfer.rows * (placement_.row_bytes() + factor_bytes_);
  packing->apart = packing->apart || StaysInBuffer(step) || IsGathered(step, transfer) || factor_bytes_ > 0;
  if (packing->apart) return;
  ForEachRange(step, transfer, [&](const std::byte*, int64_t) { ++packing->ranges; });
}

template <typename Visit>
void LaunchSchedule::ForEachRange(const Step& step, const Transfer& transfer, Visit visit) const {
  if (step.action == Action::kSend) {
    // The kernels' lists have one type of pointer for what they read and what they write.
    placement_.ForEachSource(transfer, [&](const std::byte* at, int64_t bytes) {
      visit(const_cast<std::byte*>(at), bytes);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    });
  } else {
    placement_.ForEachDestination(transfer, visit);
  }
}

// A call's buffers serve one pipeline step after the other: nothing is packed before the messages of the pipeline step
// before have moved.
Status LaunchSchedule::TakeBuffers(const std::vector<int32_t>& order) {
  used_.assign(2 * moves_.size(), 0);
  most_.assign(2 * moves_.size(), 0);
  buffers_.assign(2 * moves_.size(), nullptr);
  int32_t pipeline_step = 0;
  for (const int32_t i : order) {
    const Step& step = lowering_.steps()[static_cast<size_t>(i)];
    Packing& packing = packing_[static_cast<size_t>(i)];
    if (step.action == Action::kCopy) continue;
    if (step.pipeline_step != pipeline_step) std::fill(used_.begin(), used_.end(), 0);
    pipeline_step = step.pipeline_step;
    if (packing.IsWhole()) continue;
    const size_t slot = SlotOf(step);
    packing.buffer = used_[slot];
    used_[slot] += Aligned(packing.bytes);
    most_[slot] = std::max(most_[slot], used_[slot]);
  }
  for (size_t slot = 0; slot < most_.size(); ++slot) {
    if (most_[slot] == 0) continue;
    buffers_[slot] = layout_->calls[slot / 2]->allocate(static_cast<size_t>(most_[slot]));
    if (buffers_[slot] != nullptr) continue;
    return Status::Internal(site_->Prefix() + "no memory for " + std::to_string(most_[slot]) +
                            " bytes of messages on a device; " + kLeaveMemory + ", or split the exchange.");
  }
  return Status::Ok();
}

size_t LaunchSchedule::SlotOf(const Step& step) const {
  return 2 * static_cast<size_t>(CallOf(step)) + (step.action == Action::kSend ? 0 : 1);
}

std::byte* LaunchSchedule::BufferOf(int32_t step) const {
  const auto at = static_cast<size_t>(step);
  return buffers_[SlotOf(lowering_.steps()[at])] + packing_[at].buffer;
}

void LaunchSchedule::MakeMessage(int32_t index, int32_t pipeline_step) {
  const Step& step = lowering_.steps()[static_cast<size_t>(index)];
  const Packing& packing = packing_[static_cast<size_t>(index)];
  const int32_t call = CallOf(step);
  const bool sends = step.action == Action::kSend;
  std::byte* data = nullptr;
  if (packing.buffer >= 0) {
    data = BufferOf(index);
    CallStep& lists = ListsOf(pipeline_step, call);
    if (sends) Pack(step, data, &lists);
    if (!sends && !StaysInBuffer(step)) Unpack(step, data, &lists);
  } else {
    const Transfer& transfer = *lowering_.TransfersOf(step).begin();
    ForEachRange(step, transfer, [&](std::byte* at, int64_t) { data = at; });
  }
  if (layout_->call_of[static_cast<size_t>(step.peer)] == call) {
    const std::pair ranks = sends ? std::pair(step.here, step.peer) : std::pair(step.peer, step.here);
    auto& own = sends ? own_sent_ : own_received_;
    own.push_back({ranks, own.size(), data, packing.bytes});
    return;
  }
  messages_.push_back({sends, step.here, step.peer, call, data, packing.bytes, pipeline_step});
  ++first_message_[static_cast<size_t>(pipeline_step) + 1];
}

template <typename Visit>
void LaunchSchedule::ForEachFactors(const Step& step, Visit visit) const {
  const int64_t rows = traffic_->rows(step.here, step.peer);
  traffic_->ForEachRun(step.here, step.peer, 0, rows, [&](const Run& run) {
    visit(ArgsOf(step.here).SummandAt(run.source_row).factor, run.rows * factor_bytes_);
  });
}

// Factors of rows lie behind all rows of a message.
void LaunchSchedule::Pack(const Step& step, std::byte* message, CallStep* lists) {
  const int32_t call = CallOf(step);
  const auto add = [&](const std::byte* at, int64_t bytes) {
    AddMove(call, &lists->pack, message, at, bytes);
    message += bytes;
  };
  for (const Transfer& transfer : lowering_.TransfersOf(step)) {
    if (!IsGathered(step, transfer)) {
      ForEachRange(step, transfer, add);
      continue;
    }
    traffic_->ForEachRun(transfer.origin, transfer.target, transfer.first_row, transfer.rows, [&](const Run& run) {
      AddGather(call, &lists->pack_gathers, message, transfer.origin, run);
      message += run.rows * placement_.row_bytes();
    });
  }
  if (factor_bytes_ > 0) ForEachFactors(step, add);
}

void LaunchSchedule::Unpack(const Step& step, const std::byte* message, CallStep* lists) {
  for (const Transfer& transfer : lowering_.TransfersOf(step)) {
    ForEachRange(step, transfer, [&](std::byte* at, int64_t bytes) {
      AddMove(CallOf(step), &lists->unpack, at, message, bytes);
      message += bytes;
    });
  }
}

// Messages between ranks that share one stream: what is sent is copied to where it is received. As in NCCL, those
// between two ranks match in the order in which each lists them: both ends are sorted by ranks and then by number, and
// after that the i-th that is sent is the i-th that is received, or the tables disagree.
Status LaunchSchedule::DeliverOwn(int32_t pipeline_step) {
  for (auto* ends : {&own_sent_, &own_received_}) {
    std::sort(ends->begin(), ends->end(), [](const OwnMessage& a, const OwnMessage& b) {
      return std::tie(a.ranks, a.number) < std::tie(b.ranks, b.number);
    });
  }
  const size_t count = std::max(own_sent_.size(), own_received_.size());
  for (size_t i = 0; i < count; ++i) {
    const OwnMessage& any = i < own_sent_.size() ? own_sent_[i] : own_received_[i];
    const bool agree = i < own_sent_.size() && i < own_received_.size() && any.ranks == own_received_[i].ranks &&
                       any.bytes == own_received_[i].bytes;
    if (!agree) {
      return Status::Invalid(site_->Prefix() + "the tables of ranks " + std::to_string(any.ranks.first) + " and " +
                             std::to_string(any.ranks.second) +
                             " disagree on what the first sends to the second. "
                             "Pass what plan_ragged_all_to_all returned, unchanged.");
    }
    const int32_t call = layout_->call_of[static_cast<size_t>(any.ranks.second)];
    AddMove(call, &ListsOf(pipeline_step, call).deliver, own_received_[i].data, any.data, any.bytes);
  }
  own_sent_.clear();
  own_received_.clear();
  return Status::Ok();
}

void LaunchSchedule::AddMove(int32_t call, MoveList* list, std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes == 0) return;
  auto& moves = moves_[static_cast<size_t>(call)];
  const int64_t begin = list->Extend(moves.size(), dst, bytes);
  moves.push_back({dst, src, begin, bytes});
}

// Indices stay on the device.
void LaunchSchedule::AddGather(int32_t call, MoveList* list, std::byte* dst, int32_t origin, const Run& run) {
  const int64_t bytes = run.rows * placement_.row_bytes();
  if (bytes == 0) return;
  auto& gathers = gathers_[static_cast<size_t>(call)];
  const ExchangeArgs& from = ArgsOf(origin);
  const int64_t begin = list->Extend(gathers.size(), dst, bytes);
  gathers.push_back({dst, from.source, from.device_indices + run.source_row, from.indexed_rows, begin, bytes});
}

}  // namespace fastjax::gpu
