#include "handlers/loopback_calls.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "exchange/counts.h"
#include "handlers/planning.h"
#include "planner/table.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

Status Unexpected(const CallSite& site) { return Status::Invalid(site.Prefix() + UnexpectedOperands().message); }

// Numbers the calls of this process.
struct LoopbackCalls {
  std::atomic<int64_t> begun{0};
};

// Makes a completion that is called `count` times and then calls `done`, with the first failure if there is one.
Completion WhenAll(int32_t count, Completion done) {
  struct Waiting {
    std::mutex mutex;
    int32_t left;
    Status status;
    Completion done;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->left = count;
  waiting->done = std::move(done);
  return [waiting](const Status& status) {
    {
      const std::lock_guard<std::mutex> lock(waiting->mutex);
      if (waiting->status.ok()) waiting->status = status;
      if (--waiting->left > 0) return;
    }
    waiting->done(waiting->status);
  };
}

// The integers of one rank.
IntView Slice(const IntView& all, int64_t rank, int64_t count) {
  IntView own = all;
  own.data = static_cast<const std::byte*>(all.data) + rank * count * IntBytes(all.kind);
  own.size = count;
  return own;
}

}  // namespace

bool LoopbackCall::Decode(const ExchangeBuffers& buffers) {
  const int64_t ranks = state_.site->group_size;
  const int64_t row_bytes = RowBytes(buffers.source, 2);
  for (const ffi::AnyBuffer* rows : {&buffers.source, &buffers.result}) {
    if (rows->dimensions().size() < 2 || rows->dimensions().front() != ranks) return false;
  }
  if (row_bytes != RowBytes(buffers.result, 2)) return false;
  if (buffers.base.size_bytes() != buffers.result.size_bytes()) return false;
  all_.source = static_cast<const std::byte*>(buffers.source.untyped_data());
  all_.source_rows = buffers.source.dimensions()[1];
  all_.destination = static_cast<std::byte*>(buffers.result.untyped_data());
  all_.destination_rows = buffers.result.dimensions()[1];
  all_.row_bytes = row_bytes;
  all_.element = DecodeElement(buffers.source.element_type());
  IntView* const views[] = {&all_.input_offsets, &all_.send_sizes, &all_.output_offsets, &all_.recv_sizes};
  const ffi::AnyBuffer* const arrays[] = {&buffers.input_offsets, &buffers.send_sizes, &buffers.output_offsets,
                                          &buffers.recv_sizes};
  for (size_t i = 0; i < 4; ++i) {
    const auto kind = DecodeIntKind(arrays[i]->element_type());
    const auto dimensions = arrays[i]->dimensions();
    if (!kind.has_value() || dimensions.size() != 2 || dimensions[0] != ranks || dimensions[1] % ranks != 0 ||
        dimensions[1] != arrays[0]->dimensions()[1]) {
      return false;
    }
    *views[i] = {arrays[i]->untyped_data(), dimensions[1], *kind};
  }
  return true;
}

Status LoopbackCall::Load(const ExchangeBuffers& buffers) {
  if (!Decode(buffers)) return Unexpected(*state_.site);
  fetch_.Add(&all_.input_offsets.data, buffers.input_offsets.size_bytes());
  fetch_.Add(&all_.send_sizes.data, buffers.send_sizes.size_bytes());
  fetch_.Add(&all_.output_offsets.data, buffers.output_offsets.size_bytes());
  fetch_.Add(&all_.recv_sizes.data, buffers.recv_sizes.size_bytes());
  if (Status status = fetch_.Run(caller_); !status.ok()) return status;
  all_.context = &caller_;
  return CopyBase(*state_.gpu, caller_, buffers.base, all_.destination);
}

ExchangeArgs LoopbackCall::ArgsOf(int32_t rank) const {
  ExchangeArgs args = all_;
  args.source += rank * all_.source_rows * all_.row_bytes;
  args.destination += rank * all_.destination_rows * all_.row_bytes;
  for (IntView* view : {&args.input_offsets, &args.send_sizes, &args.output_offsets, &args.recv_sizes}) {
    *view = Slice(*view, rank, view->size);
  }
  return args;
}

// The ranks of one call meet each other only: other devices may execute the same call site in the same run.
void LoopbackCall::Start(int64_t /*run_id*/, const Status& loaded, const Completion& done) {
  if (!loaded.ok()) return done(loaded);
  const int64_t call = ProcessState<LoopbackCalls>().begun.fetch_add(1);
  const Completion all = WhenAll(state_.site->group_size, done);
  for (int32_t rank = 0; rank < state_.site->group_size; ++rank) {
    state_.exchange->Start(call, rank, ArgsOf(rank), all);
  }
}

Status LoopbackPlanCall::Load(const PlanBuffers& buffers) {
  const int64_t ranks = state_.site->group_size;
  const auto kind = DecodeIntKind(buffers.send_sizes.element_type());
  const auto dimensions = buffers.send_sizes.dimensions();
  if (!kind.has_value() || dimensions.size() != 2 || dimensions[0] != ranks || dimensions[1] % ranks != 0 ||
      static_cast<int64_t>(buffers.table.element_count()) != state_.table_words) {
    return Unexpected(*state_.site);
  }
  sizes_ = {buffers.send_sizes.untyped_data(), dimensions[1], *kind};
  table_ = static_cast<int32_t*>(buffers.table.untyped_data());
  std::byte* room = nullptr;
  fetch_.Add(&sizes_.data, buffers.send_sizes.size_bytes());
  fetch_.AddRoom(&room, static_cast<size_t>(state_.table_words) * sizeof(int32_t));
  if (Status status = fetch_.Run(caller_); !status.ok()) return status;
  words_ = reinterpret_cast<int32_t*>(room);
  return Status::Ok();
}

Status LoopbackPlanCall::Plan() {
  std::vector<CountsArgs> args;
  args.reserve(static_cast<size_t>(state_.site->group_size));
  for (int32_t rank = 0; rank < state_.site->group_size; ++rank) args.push_back({Slice(sizes_, rank, sizes_.size)});
  std::vector<int64_t> traffic;
  std::vector<int64_t> scratch;
  if (Status status = SumCounts(*state_.site, 0, args, &traffic, &scratch); !status.ok()) return status;
  bool made = false;
  if (Status status = state_.plan(traffic.data(), {{state_.rank, words_}}, &made); !status.ok()) return status;
  fetch_.UsedByStream();
  return CopyTable(*state_.gpu, caller_, *state_.site, words_, table_);
}

void LoopbackPlanCall::Start(int64_t /*run_id*/, const Status& loaded, const Completion& done) {
  done(loaded.ok() ? Guarded([this] { return Plan(); }) : loaded);
}

}  // namespace fastjax::handlers
