#include "backends/gpu/launcher.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace fastjax::gpu {
namespace {

constexpr size_t kListAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kListAlignment - 1) / kListAlignment * kListAlignment; }

template <typename... T>
size_t Bytes(const std::vector<T>&... lists) {
  return (Aligned(lists.size() * sizeof(T)) + ...);
}

// Returns the length of the longest list that one launch takes.
int64_t LongestList(const LaunchSchedule& schedule, int32_t call) {
  int64_t longest = 0;
  for (int32_t pipeline_step = 0; pipeline_step < schedule.count(); ++pipeline_step) {
    const CallStep& lists = schedule.at(pipeline_step, call);
    longest = std::max({longest, lists.pack.count, lists.deliver.count, lists.copy.count, lists.unpack.count});
  }
  return longest;
}

// The lists of a call, of which one copy is on the host and one on the device.
struct Copies {
  // Appends a list; returns where it lies on the device, or null if it is empty.
  template <typename T>
  const T* Append(const std::vector<T>& list) {
    if (list.empty()) return nullptr;
    std::memcpy(here + bytes, static_cast<const void*>(list.data()), list.size() * sizeof(T));
    const auto* const copy = reinterpret_cast<const T*>(there + bytes);
    bytes += Bytes(list);
    return copy;
  }

  std::byte* here;
  std::byte* there;
  size_t bytes = 0;
};

}  // namespace

Status Launcher::Launch(const LaunchSchedule& schedule, const Layout& layout, nccl::Channel* channel) {
  DeviceScope scope(*gpu_);
  // What is thrown must not leave work behind either: callers take their memory back then too.
  tally_ = {};
  tally_.exchanges = 1;
  const Status status = Guarded([&] { return Put(schedule, layout, channel); });
  status.ok() ? gpu_->Count(tally_) : Settle();
  Clear();
  return status;
}

Status Launcher::Put(const LaunchSchedule& schedule, const Layout& layout, nccl::Channel* channel) {
  Status status = Prepare(layout);
  for (int32_t call = 0; status.ok() && call < schedule.calls(); ++call) status = Upload(schedule, call);
  // Memory of other calls is touched only when they have come to this exchange, and given back only when all have left
  // it.
  if (status.ok()) status = Join();
  for (int32_t pipeline_step = 0; status.ok() && pipeline_step < schedule.count(); ++pipeline_step)
    status = LaunchStep(schedule, pipeline_step, channel);
  for (int32_t call = 0; status.ok() && schedule.sums() && call < schedule.calls(); ++call)
    status = Sum(schedule, call);
  return status.ok() ? Join() : status;
}

// Waits until nothing is left of an exchange that failed half-way: callers take back memory that others may still write
// to.
void Launcher::Settle() {
  for (const CallResources& call : calls_) {
    if (call.side != nullptr) gpu_->driver().SynchronizeStream(call.side);
  }
  for (const CallResources& call : calls_) gpu_->driver().SynchronizeStream(call.caller->stream);
}

Status Launcher::Prepare(const Layout& layout) {
  Clear();
  talks_.assign(layout.calls.size(), 0);
  sides_.assign(layout.calls.size(), nullptr);
  for (const Caller* caller : layout.calls) {
    CallResources call{caller, nullptr, nullptr, 0, {}, nullptr, nullptr, nullptr, nullptr, nullptr};
    Status status = gpu_->TakeEvent(caller->device, &call.event);
    if (status.ok()) status = gpu_->SideStream(caller->device, Beside::kMessages, &call.side);
    if (status.ok()) status = gpu_->LoadKernels(caller->device);
    if (status.ok()) status = gpu_->MaxBlocks(caller->device, caller->beside, &call.blocks);
    sides_[calls_.size()] = call.side;
    calls_.push_back(call);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

void Launcher::Clear() {
  for (CallResources& call : calls_) {
    gpu_->ReturnEvent(call.caller->device, call.event);
    gpu_->Return(call.caller->device, Place::kPinned, call.pinned, call.caller->stream);
  }
  calls_.clear();
}

// Launches take short lists along. Where all are short, and there is nothing to be summed, nothing is copied; else
// there is one copy for all lists of a call.
Status Launcher::Upload(const LaunchSchedule& schedule, int32_t call) {
  static const std::vector<kernels::Move> kNoMoves;
  static const SumList kNoSums;
  const SumList& sums = schedule.sums() ? schedule.sum(call) : kNoSums;
  const bool few = sums.results.empty() && LongestList(schedule, call) <= kernels::kFewMoves;
  const auto& moves = few ? kNoMoves : schedule.moves(call);
  const auto& gathers = schedule.gathers(call);
  const size_t bytes = Bytes(moves, gathers, sums.slices, sums.starts, sums.entries);
  if (bytes == 0) return Status::Ok();
  CallResources& own = calls_[static_cast<size_t>(call)];
  const int32_t device = own.caller->device;
  std::byte* const there = own.caller->allocate(bytes);
  if (there == nullptr) {
    return Status::Internal("fastjax: " + gpu_->Name(device) + " has no memory for " + std::to_string(bytes) +
                            " bytes of lists; " + kLeaveMemory + ".");
  }
  if (Status status = gpu_->Take(device, Place::kPinned, bytes, &own.pinned); !status.ok()) return status;
  Copies copies = {own.pinned.data, there};
  own.moves = copies.Append(moves);
  own.gathers = copies.Append(gathers);
  own.slices = copies.Append(sums.slices);
  own.starts = copies.Append(sums.starts);
  own.entries = copies.Append(sums.entries);
  return gpu_->Check(gpu_->driver().Copy(there, own.pinned.data, bytes, own.caller->stream), device, "copy its lists");
}

Status Launcher::LaunchStep(const LaunchSchedule& schedule, int32_t pipeline_step, nccl::Channel* channel) {
  if (pipeline_step > 0) {
    if (Status status = Join(); !status.ok()) return status;
  }
  const int32_t calls = schedule.calls();
  for (int32_t call = 0; call < calls; ++call) {
    const CallStep& lists = schedule.at(pipeline_step, call);
    Status status = Run(schedule, call, lists.pack, calls_[static_cast<size_t>(call)].caller->stream);
    if (status.ok()) status = Gather(schedule, call, lists.pack_gathers);
    if (!status.ok()) return status;
    tally_.packed += lists.pack.bytes + lists.pack_gathers.bytes;
  }
  if (Status status = MoveMessages(schedule, pipeline_step, channel); !status.ok()) return status;
  for (int32_t call = 0; call < calls; ++call) {
    const CallStep& lists = schedule.at(pipeline_step, call);
    Status status = Run(schedule, call, lists.copy, calls_[static_cast<size_t>(call)].caller->stream);
    if (status.ok()) status = Gather(schedule, call, lists.copy_gathers);
    if (!status.ok()) return status;
    tally_.copied += lists.copy.bytes + lists.copy_gathers.bytes;
  }
  for (int32_t call = 0; call < calls; ++call) {
    const CallResources& own = calls_[static_cast<size_t>(call)];
    if (talks_[static_cast<size_t>(call)] == 0) continue;
    if (Status status = Follow(own, own.side, own.caller->stream); !status.ok()) return status;
    const MoveList& unpack = schedule.at(pipeline_step, call).unpack;
    if (Status status = Run(schedule, call, unpack, own.caller->stream); !status.ok()) return status;
    tally_.unpacked += unpack.bytes;
  }
  return Status::Ok();
}

Status Launcher::MoveMessages(const LaunchSchedule& schedule, int32_t pipeline_step, nccl::Channel* channel) {
  std::fill(talks_.begin(), talks_.end(), 0);
  const MessageEnd* const messages = schedule.messages(pipeline_step);
  const int64_t count = schedule.num_messages(pipeline_step);
  for (int64_t i = 0; i < count; ++i) {
    talks_[static_cast<size_t>(messages[i].call)] = 1;
    tally_.messages += messages[i].sends ? 1 : 0;
    tally_.sent += messages[i].sends ? messages[i].bytes : 0;
  }
  for (int32_t call = 0; call < schedule.calls(); ++call) {
    const CallResources& own = calls_[static_cast<size_t>(call)];
    const MoveList& deliver = schedule.at(pipeline_step, call).deliver;
    if (deliver.count > 0) talks_[static_cast<size_t>(call)] = 1;
    if (talks_[static_cast<size_t>(call)] == 0) continue;
    if (Status status = Follow(own, own.caller->stream, own.side); !status.ok()) return status;
    if (Status status = Run(schedule, call, deliver, own.side); !status.ok()) return status;
    tally_.messages += deliver.count;
    tally_.sent += deliver.bytes;
  }
  if (count == 0) return Status::Ok();
  if (channel == nullptr) {
    return Status::Internal("fastjax: a plan has messages, and there is nothing to send them by.");
  }
  return channel->Move(messages, count, sides_);
}

// launch() is what the driver says of a launch on the call's device.
template <typename LaunchKernel>
Status Launcher::Start(const CallResources& call, LaunchKernel launch) {
  ++tally_.kernels;
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(call.caller->device); !status.ok()) return status;
  return gpu_->Check(launch(), call.caller->device, "launch a kernel");
}

Status Launcher::Run(const LaunchSchedule& schedule, int32_t call, const MoveList& list, kernels::Stream stream) {
  if (list.count == 0) return Status::Ok();
  const CallResources& own = calls_[static_cast<size_t>(call)];
  const auto move = own.moves == nullptr ? gpu_->driver().MoveFew : gpu_->driver().MoveRows;
  const kernels::Move* const moves = own.moves == nullptr ? schedule.moves(call).data() : own.moves;
  return Start(own, [&] { return move(moves + list.first, list.count, list.end, BlocksFor(own, list.end), stream); });
}

Status Launcher::Gather(const LaunchSchedule& schedule, int32_t call, const MoveList& list) {
  if (list.count == 0) return Status::Ok();
  const CallResources& own = calls_[static_cast<size_t>(call)];
  return Start(own, [&] {
    return gpu_->driver().GatherRows(own.gathers + list.first, list.count, list.end, schedule.row_bytes(),
                                     BlocksFor(own, list.end), own.caller->stream);
  });
}

Status Launcher::Sum(const LaunchSchedule& schedule, int32_t call) {
  const CallResources& own = calls_[static_cast<size_t>(call)];
  const auto sum_bytes = static_cast<int64_t>(kernels::ElementBytes(schedule.types().sum));
  for (const SumList::Result& result : schedule.sum(call).results) {
    kernels::IndexedSum sum = result.sum;
    sum.slices = own.slices + result.first_slice;
    if (own.starts != nullptr) {
      sum.starts = own.starts + result.first_start;
      sum.entries = own.entries + result.first_entry;
    }
    const int64_t bytes = sum.rows * sum.elements * sum_bytes;
    tally_.summed += bytes;
    const Status status = Start(own, [&] {
      return gpu_->driver().SumIndexed(schedule.types(), &sum, BlocksFor(own, bytes), own.caller->stream);
    });
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

// Returns as many blocks as find a tile each: a few runs need not occupy a GPU.
int32_t Launcher::BlocksFor(const CallResources& call, int64_t bytes) const {
  const int64_t tiles = (bytes + kernels::kSmallTileBytes - 1) / kernels::kSmallTileBytes;
  return static_cast<int32_t>(std::clamp<int64_t>(tiles, 1, call.blocks));
}

// What is put on `then` from now on waits for what is on `first`.
Status Launcher::Follow(const CallResources& call, kernels::Stream first, kernels::Stream then) {
  DeviceScope scope(*gpu_);
  if (Status status = Record(call, first, &scope); !status.ok()) return status;
  return Wait(call, then, call);
}

// The call's event stands for what is on the stream. Chooses the call's device.
Status Launcher::Record(const CallResources& call, kernels::Stream stream, DeviceScope* scope) {
  const int32_t device = call.caller->device;
  if (Status status = scope->Choose(device); !status.ok()) return status;
  return gpu_->Check(gpu_->driver().RecordEvent(call.event, stream), device, "record an event");
}

// A stream of the call's, whose device has been chosen, waits for what the other's event stands for.
Status Launcher::Wait(const CallResources& call, kernels::Stream stream, const CallResources& other) {
  return gpu_->Check(gpu_->driver().WaitEvent(stream, other.event), call.caller->device, "wait for an event");
}

// All calls wait for all others, by way of the first: it waits for them, and they for it. All for all would be the
// square of their number.
Status Launcher::Join() {
  if (calls_.size() < 2) return Status::Ok();
  DeviceScope scope(*gpu_);
  const CallResources& first = calls_.front();
  for (auto call = calls_.begin() + 1; call != calls_.end(); ++call) {
    if (Status status = Record(*call, call->caller->stream, &scope); !status.ok()) return status;
  }
  if (Status status = scope.Choose(first.caller->device); !status.ok()) return status;
  for (auto call = calls_.begin() + 1; call != calls_.end(); ++call) {
    if (Status status = Wait(first, first.caller->stream, *call); !status.ok()) return status;
  }
  if (Status status = Record(first, first.caller->stream, &scope); !status.ok()) return status;
  for (auto call = calls_.begin() + 1; call != calls_.end(); ++call) {
    Status status = scope.Choose(call->caller->device);
    if (status.ok()) status = Wait(*call, call->caller->stream, first);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace fastjax::gpu
