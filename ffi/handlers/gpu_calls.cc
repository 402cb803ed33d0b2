#include "handlers/gpu_calls.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "planner/table.h"
#include "rendezvous/counts.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

using gpu::Caller;
using gpu::Gpu;

size_t BytesOf(const ffi::AnyBuffer& buffer) { return buffer.size_bytes(); }

// The words of a stage table that precede its entries.
int64_t WordsBeforeEntries(const CallSite& site) { return planner::kHeaderWords + 2 * int64_t{site.group_size}; }

gpu::TableShape ShapeOfTable(const CallSite& site) {
  constexpr size_t kWord = sizeof(int32_t);
  return {static_cast<size_t>(WordsBeforeEntries(site)) * kWord, planner::kEntryWords * kWord,
          planner::kEntries * kWord};
}

// Numbers the calls of this process in which one device has all ranks. XLA's run ids have 32 bits: no call is taken for
// a run that has failed.
struct CallsOfAll {
  std::atomic<int64_t> begun{int64_t{1} << 32};
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

// Returns the integers of a rank, given those of rank 0.
IntView OfPosition(int32_t position, IntView ints) {
  ints.data = static_cast<const std::byte*>(ints.data) + position * ints.size * IntBytes(ints.kind);
  return ints;
}

// Finds the site's GPUs, and the backend that moves its rows.
ffi::Error OpenGpuSite(const CallAttributes& attrs, GpuSite* state, Backend* backend) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  state->operands = attrs.operands;
  state->site = *site;
  int32_t devices_per_server = 0;
  if (state->all_ranks_here()) {
    const auto topology = DecodeTopology(attrs);
    if (!topology.has_value()) return topology.error();
    devices_per_server = topology->devices_per_server;
  }
  const Status found = FindGpuBackend(attrs.platform, **site, devices_per_server, backend);
  if (!found.ok()) return ToError(found);
  state->gpu = backend->gpus.gpu;
  return ffi::Error::Success();
}

}  // namespace

ffi::Error OpenGpuExchange(const CallAttributes& attrs, GpuExchangeSite* state) {
  Backend backend;
  if (ffi::Error error = OpenGpuSite(attrs, state, &backend); error.failure()) return error;
  auto options = DecodeExchangeOptions(attrs, state->site);
  if (!options.has_value()) return options.error();
  state->reverse = options->reverse;
  state->exchange = backend.OpenExchange(state->site, std::move(*options));
  state->started = attrs.started;
  return ffi::Error::Success();
}

ffi::Error OpenGpuPlan(const CallAttributes& attrs, GpuPlanSite* state) {
  Backend backend;
  if (ffi::Error error = OpenGpuSite(attrs, state, &backend); error.failure()) return error;
  auto planning = DecodePlanning(attrs, state->site);
  if (!planning.has_value()) return planning.error();
  state->table_words = planning->table_words;
  if (!state->all_ranks_here()) {
    state->counts = backend.OpenCounts(state->site, std::move(planning->plan));
  } else if (attrs.rank < 0 || attrs.rank >= state->site->group_size) {
    return ffi::Error::InvalidArgument(state->site->Prefix() + "there is no such rank");
  } else {
    state->plan = std::move(planning->plan);
    state->rank = static_cast<int32_t>(attrs.rank);
  }
  return ffi::Error::Success();
}

bool GpuCall::TakePartition(const Buffers& buffers) {
  if (site_.all_ranks_here()) return true;
  const ffi::AnyBuffer& partition = buffers[Operand::kPartition];
  if (!IsPartition(partition)) return false;
  there_ = partition.untyped_data();
  here_ = static_cast<const uint32_t*>(there_);
  fetch_.Add(&here_, sizeof(*here_));
  return true;
}

Status GpuCall::FetchAll() {
  Status status = fetch_.Run(caller_);
  if (!status.ok() || site_.all_ranks_here()) return status;
  partition_ = CheckedPartition(*here_, *site_.site);
  if (partition_ < 0) return UnexpectedOperands();
  site_.partitions.Remember(ordinal_, partition_);
  return status;
}

// After a failure: from what is remembered, or else by a blocking copy. -1: it cannot be found.
int32_t GpuCall::FindPartition() {
  if (partition_ < 0) partition_ = site_.partitions.Recall(ordinal_);
  if (partition_ < 0 && there_ != nullptr) partition_ = ReadPartition();
  return partition_;
}

// Copies into memory of the calling thread, which is slow but works where there is no pinned memory.
int32_t GpuCall::ReadPartition() const {
  uint32_t value = 0;
  const kernels::Driver& driver = site_.gpu->driver();
  gpu::DeviceScope scope(*site_.gpu);
  if (!scope.Choose(caller_.device).ok()) return -1;
  const int copied = driver.Copy(&value, there_, sizeof(value), caller_.stream);
  if (driver.SynchronizeStream(caller_.stream) != 0 || copied != 0) return -1;
  return CheckedPartition(value, *site_.site);
}

Status GpuExchangeCall::Load(const Buffers& buffers) {
  const CallSite& site = *state_.site;
  if (!TakePartition(buffers)) return UnexpectedOperands();
  if (!DecodeExchange(buffers, site, state_.reverse, &args_)) return UnexpectedOperands();
  if (buffers.Has(Operand::kIndices) && !buffers.Has(Operand::kStarts)) return UnexpectedOperands();
  fetch_.Add(&args_.input_offsets.data, BytesOf(buffers[Operand::kInputOffsets]));
  fetch_.Add(&args_.send_sizes.data, BytesOf(buffers[Operand::kSendSizes]));
  fetch_.Add(&args_.output_offsets.data, BytesOf(buffers[Operand::kOutputOffsets]));
  fetch_.Add(&args_.recv_sizes.data, BytesOf(buffers[Operand::kRecvSizes]));
  if (args_.table != nullptr) {
    fetch_.AddTable(&args_.table, static_cast<size_t>(args_.table_words) * sizeof(*args_.table), ShapeOfTable(site));
  }
  if (Status status = FetchAll(); !status.ok()) return status;
  args_.context = &caller_;
  if (state_.started) return GoBeside(buffers);
  return CopyBase(*state_.gpu, caller_, buffers[Operand::kBase], args_.destination);
}

// The operands are there, since XLA's stream has been waited for. XLA keeps rows and factors until the exchange is
// done. Lists of indices may be temporary arrays of the program, which it does not know to be in use.
Status GpuExchangeCall::GoBeside(const Buffers& buffers) {
  gpu::Gpu& gpu = *state_.gpu;
  kernels::Stream stream = nullptr;
  Status status = gpu.SideStream(caller_.device, gpu::Beside::kExchanges, &stream);
  if (!status.ok()) return status;
  memory_.emplace(&gpu, caller_.device, stream);
  beside_ = {stream, caller_.device, [this](size_t bytes) { return memory_->Allocate(bytes); }, true};
  args_.context = &beside_;
  if (buffers.result.size_bytes() > 0) rows_ = args_.destination;
  flight_.reads = {BytesOf(buffers[Operand::kSource]) > 0 ? args_.source : nullptr, args_.factors};
  const auto keep = [&](const int32_t** list, size_t bytes) {
    if (!status.ok() || bytes == 0) return;
    std::byte* const own = memory_->Allocate(bytes);
    status = own == nullptr ? Status::Internal("fastjax: " + gpu.Name(caller_.device) + " has no memory for " +
                                               std::to_string(bytes) + " bytes of indices; " + gpu::kLeaveMemory + ".")
                            : gpu.Check(gpu.driver().Copy(own, *list, bytes, stream), caller_.device, "copy indices");
    *list = reinterpret_cast<const int32_t*>(own);
  };
  if (buffers.Has(Operand::kIndices)) keep(&args_.device_indices, BytesOf(buffers[Operand::kIndices]));
  if (buffers.Has(Operand::kStarts)) keep(&args_.device_starts, BytesOf(buffers[Operand::kStarts]));
  return status.ok() ? CopyBase(gpu, beside_, buffers[Operand::kBase], args_.destination) : status;
}

void GpuExchangeCall::Start(int64_t run_id, const Status& loaded, Completion done) {
  if (loaded.ok() && state_.started) {
    const Completion put = [this, run_id, done](const Status& status) {
      flight_.run_id = run_id;
      // What was put on the stream so far must not go on in memory that XLA takes back.
      if (!status.ok()) state_.gpu->driver().SynchronizeStream(beside_.stream);
      done(status.ok() ? state_.gpu->AddFlight(caller_.device, rows_, flight_) : status);
    };
    return StartRanks(run_id, put);
  }
  if (loaded.ok()) return StartRanks(run_id, std::move(done));
  if (memory_.has_value()) state_.gpu->driver().SynchronizeStream(beside_.stream);
  Fail(state_.exchange.get(), run_id, loaded, std::move(done));
}

// Of a device that has all ranks, arrays have the operands of each, by position.
void GpuExchangeCall::StartRanks(int64_t run_id, Completion done) {
  if (!state_.all_ranks_here()) return state_.exchange->Start(run_id, partition(), args_, std::move(done));
  const int64_t call = ProcessState<CallsOfAll>().begun.fetch_add(1);
  const int32_t devices = state_.site->group_size;
  const Completion all = WhenAll(devices, std::move(done));
  for (int32_t p = 0; p < devices; ++p) state_.exchange->Start(call, p, ArgsOf(p), all);
}

ExchangeArgs GpuExchangeCall::ArgsOf(int32_t position) const {
  ExchangeArgs args = args_;
  args.source += position * args.source_rows * args.row_bytes;
  args.destination += position * args.destination_rows * args.row_bytes;
  for (IntView* view : {&args.input_offsets, &args.send_sizes, &args.output_offsets, &args.recv_sizes}) {
    *view = OfPosition(position, *view);
  }
  return args;
}

Status CopyBase(const Gpu& gpu, const Caller& caller, const ffi::AnyBuffer& base, std::byte* result) {
  const void* const from = base.untyped_data();
  if (from == result) return Status::Ok();
  return gpu.Check(gpu.driver().Copy(result, from, base.size_bytes(), caller.stream), caller.device,
                   "copy the output's rows");
}

Status FindDevice(const Gpu& gpu, int32_t ordinal, int32_t* device) {
  const Status status = gpu.Check(gpu.driver().GetDevice(device), ordinal, "be asked for");
  if (!status.ok() || *device == kernels::kNoDevice) *device = ordinal;
  return status;
}

Status PassRows(Gpu* gpu, const Caller& caller, const ffi::AnyBuffer& rows, const ffi::RemainingArgs& kept,
                const ffi::AnyBuffer& result) {
  if (result.size_bytes() != rows.size_bytes()) return UnexpectedOperands();
  std::vector<const void*> arrays;
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto array = kept.get<ffi::AnyBuffer>(i);
    if (array.has_value()) arrays.push_back(array->untyped_data());
  }
  const void* const in_flight = rows.size_bytes() > 0 ? rows.untyped_data() : nullptr;
  Status status = gpu->EndFlight(caller.device, in_flight, arrays, caller.stream);
  if (!status.ok() || in_flight == nullptr) return status;
  return CopyBase(*gpu, caller, rows, static_cast<std::byte*>(result.untyped_data()));
}

Status GpuPlanCall::Load(const Buffers& buffers) {
  if (!TakePartition(buffers)) return UnexpectedOperands();
  if (!DecodeCounts(buffers, *state_.site, state_.table_words, &args_)) return UnexpectedOperands();
  if (args_.gathered != nullptr) return UnexpectedOperands();
  table_ = args_.table_words;
  args_.take_table = [this] { return TakeTable(); };
  std::byte* room = nullptr;
  fetch_.Add(&args_.send_sizes.data, BytesOf(buffers[Operand::kSendSizes]));
  fetch_.AddRoom(&room, static_cast<size_t>(state_.table_words) * sizeof(int32_t));
  Status status = FetchAll();
  args_.table_words = reinterpret_cast<int32_t*>(room);
  return status;
}

void GpuPlanCall::Start(int64_t run_id, const Status& loaded, Completion done) {
  if (!loaded.ok()) return Fail(state_.counts.get(), run_id, loaded, std::move(done));
  if (state_.all_ranks_here()) return done(Guarded([this] { return PlanForAll(); }));
  state_.counts->Start(run_id, partition(), args_, std::move(done));
}

Status GpuPlanCall::PlanForAll() {
  const CallSite& site = *state_.site;
  std::vector<CountsArgs> args(static_cast<size_t>(site.group_size));
  args[site.position_at[state_.rank]] = args_;
  for (size_t p = 0; p < args.size(); ++p) {
    args[p].send_sizes = OfPosition(static_cast<int32_t>(p), args_.send_sizes);
  }
  Launch unrecorded;
  return CountsWork().GatherAndPlan(site, 0, args, {state_.rank}, state_.plan, &unrecorded);
}

// From any thread.
Status GpuPlanCall::TakeTable() {
  fetch_.UsedByStream();
  const int32_t* const words = args_.table_words;
  const int64_t used = WordsBeforeEntries(*state_.site) + int64_t{planner::kEntryWords} * words[planner::kEntries];
  const Gpu& gpu = *state_.gpu;
  gpu::DeviceScope scope(gpu);
  if (Status status = scope.Choose(caller_.device); !status.ok()) return status;
  return gpu.Check(gpu.driver().Copy(table_, words, static_cast<size_t>(used) * sizeof(*words), caller_.stream),
                   caller_.device, "copy a stage table");
}

}  // namespace fastjax::handlers
