#include "handlers/gpu_calls.h"

#include <string>
#include <utility>
#include <vector>

#include "backends/gpu_registry.h"
#include "handlers/planning.h"
#include "planner/table.h"

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

// Finds the site's GPUs, and the backend that moves its rows.
ffi::Error OpenGpuSite(const CallAttributes& attrs, GpuSite* state, std::shared_ptr<Backend>* backend) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  const std::string platform(attrs.platform);
  PlatformBackend platform_backend;
  Status found;
  if (attrs.operands.Has(Operand::kPartition)) {
    found = FindGpuBackend(platform, **site, &platform_backend);
  } else {
    const auto topology = DecodeTopology(attrs);
    if (!topology.has_value()) return topology.error();
    found = FindLoopbackBackend(platform, **site, topology->devices_per_server, &platform_backend);
  }
  if (!found.ok()) return ToError(found);
  state->operands = attrs.operands;
  state->site = *site;
  state->gpu = std::move(platform_backend.gpu);
  *backend = std::move(platform_backend.backend);
  return ffi::Error::Success();
}

}  // namespace

ffi::Error OpenGpuExchange(const CallAttributes& attrs, GpuExchangeSite* state) {
  std::shared_ptr<Backend> backend;
  if (ffi::Error error = OpenGpuSite(attrs, state, &backend); error.failure()) return error;
  auto options = DecodeExchangeOptions(attrs, state->site);
  if (!options.has_value()) return options.error();
  state->reverse = options->reverse;
  state->exchange = backend->OpenExchange(state->site, std::move(*options));
  state->started = attrs.started;
  return ffi::Error::Success();
}

ffi::Error OpenGpuPlan(const CallAttributes& attrs, GpuPlanSite* state) {
  std::shared_ptr<Backend> backend;
  if (ffi::Error error = OpenGpuSite(attrs, state, &backend); error.failure()) return error;
  auto planning = DecodePlanning(attrs, state->site);
  if (!planning.has_value()) return planning.error();
  state->table_words = planning->table_words;
  if (attrs.operands.Has(Operand::kPartition)) {
    state->counts = backend->OpenCounts(state->site, std::move(planning->tables));
  } else if (attrs.rank < 0 || attrs.rank >= state->site->group_size) {
    return ffi::Error::InvalidArgument(state->site->Prefix() + "there is no such rank");
  } else {
    state->plan = std::move(planning->tables);
    state->rank = static_cast<int32_t>(attrs.rank);
  }
  return ffi::Error::Success();
}

bool PartitionLookup::Take(const ffi::AnyBuffer& partition) {
  if (!IsPartition(partition)) return false;
  there_ = partition.untyped_data();
  here_ = static_cast<const uint32_t*>(there_);
  return true;
}

bool PartitionLookup::Read() {
  partition_ = CheckedPartition(*here_, *state_.site);
  if (partition_ >= 0) state_.partitions.Remember(ordinal_, partition_);
  return partition_ >= 0;
}

int32_t PartitionLookup::Find(const Caller& caller) {
  if (partition_ < 0) partition_ = state_.partitions.Recall(ordinal_);
  if (partition_ < 0 && there_ != nullptr) partition_ = ReadAlone(caller);
  return partition_;
}

// Copies into memory of the calling thread, which is slow but works where there is no pinned memory.
int32_t PartitionLookup::ReadAlone(const Caller& caller) const {
  uint32_t value = 0;
  const kernels::Driver& driver = state_.gpu->driver();
  gpu::DeviceScope scope(*state_.gpu);
  if (!scope.Choose(caller.device).ok()) return -1;
  const int copied = driver.Copy(&value, there_, sizeof(value), caller.stream);
  if (driver.SynchronizeStream(caller.stream) != 0 || copied != 0) return -1;
  return CheckedPartition(value, *state_.site);
}

Status GpuExchangeCall::Load(const ExchangeBuffers& buffers) {
  const CallSite& site = *state_.site;
  if (!buffers.partition.has_value() || !lookup_.Take(*buffers.partition)) return UnexpectedOperands();
  if (!DecodeExchange(buffers, site, state_.reverse, &args_)) return UnexpectedOperands();
  if (buffers.indices.has_value() && !buffers.starts.has_value()) return UnexpectedOperands();
  fetch_.Add(lookup_.where(), sizeof(uint32_t));
  fetch_.Add(&args_.input_offsets.data, BytesOf(buffers.input_offsets));
  fetch_.Add(&args_.send_sizes.data, BytesOf(buffers.send_sizes));
  fetch_.Add(&args_.output_offsets.data, BytesOf(buffers.output_offsets));
  fetch_.Add(&args_.recv_sizes.data, BytesOf(buffers.recv_sizes));
  if (args_.table != nullptr) {
    fetch_.AddTable(&args_.table, static_cast<size_t>(args_.table_words) * sizeof(*args_.table), ShapeOfTable(site));
  }
  if (Status status = fetch_.Run(caller_); !status.ok()) return status;
  if (!lookup_.Read()) return UnexpectedOperands();
  args_.context = &caller_;
  if (state_.started) return GoBeside(buffers);
  return CopyBase(*state_.gpu, caller_, buffers.base, args_.destination);
}

// The operands are there, since XLA's stream has been waited for. XLA keeps rows and factors until the exchange is
// done. Lists of indices may be temporary arrays of the program, which it does not know to be in use.
Status GpuExchangeCall::GoBeside(const ExchangeBuffers& buffers) {
  gpu::Gpu& gpu = *state_.gpu;
  kernels::Stream stream = nullptr;
  Status status = gpu.SideStream(caller_.device, gpu::Beside::kExchanges, &stream);
  if (!status.ok()) return status;
  memory_.emplace(&gpu, caller_.device, stream);
  beside_ = {stream, caller_.device, [this](size_t bytes) { return memory_->Allocate(bytes); }, true};
  args_.context = &beside_;
  if (buffers.result.size_bytes() > 0) rows_ = args_.destination;
  flight_.reads = {buffers.source.size_bytes() > 0 ? args_.source : nullptr, args_.factors};
  const auto keep = [&](const int32_t** list, size_t bytes) {
    if (!status.ok() || bytes == 0) return;
    std::byte* const own = memory_->Allocate(bytes);
    status = own == nullptr ? Status::Internal("fastjax: " + gpu.Name(caller_.device) + " has no memory for " +
                                               std::to_string(bytes) + " bytes of indices; " + gpu::kLeaveMemory + ".")
                            : gpu.Check(gpu.driver().Copy(own, *list, bytes, stream), caller_.device, "copy indices");
    *list = reinterpret_cast<const int32_t*>(own);
  };
  if (buffers.indices.has_value()) keep(&args_.device_indices, BytesOf(*buffers.indices));
  if (buffers.starts.has_value()) keep(&args_.device_starts, BytesOf(*buffers.starts));
  return status.ok() ? CopyBase(gpu, beside_, buffers.base, args_.destination) : status;
}

void GpuExchangeCall::Start(int64_t run_id, const Status& loaded, Completion done) {
  if (loaded.ok() && state_.started) {
    const Completion put = [this, run_id, done](const Status& status) {
      flight_.run_id = run_id;
      // What was put on the stream so far must not go on in memory that XLA takes back.
      if (!status.ok()) state_.gpu->driver().SynchronizeStream(beside_.stream);
      done(status.ok() ? state_.gpu->AddFlight(caller_.device, rows_, flight_) : status);
    };
    return state_.exchange->Start(run_id, lookup_.partition(), args_, put);
  }
  if (loaded.ok()) return state_.exchange->Start(run_id, lookup_.partition(), args_, std::move(done));
  if (memory_.has_value()) state_.gpu->driver().SynchronizeStream(beside_.stream);
  const int32_t partition = lookup_.Find(caller_);
  if (partition < 0) return done(FailsAlone(*state_.site, loaded));
  state_.exchange->FailGroup(run_id, partition, loaded, std::move(done));
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

Status CopyTable(const Gpu& gpu, const Caller& caller, const CallSite& site, const int32_t* words, int32_t* table) {
  const int64_t used = WordsBeforeEntries(site) + int64_t{planner::kEntryWords} * words[planner::kEntries];
  gpu::DeviceScope scope(gpu);
  if (Status status = scope.Choose(caller.device); !status.ok()) return status;
  return gpu.Check(gpu.driver().Copy(table, words, static_cast<size_t>(used) * sizeof(*words), caller.stream),
                   caller.device, "copy a stage table");
}

Status GpuPlanCall::Load(const PlanBuffers& buffers) {
  const CallSite& site = *state_.site;
  auto sizes = DecodeInts(buffers.send_sizes);
  if (!buffers.partition.has_value() || !lookup_.Take(*buffers.partition)) return UnexpectedOperands();
  if (!sizes.has_value() || sizes->size % site.group_size != 0 ||
      static_cast<int64_t>(buffers.table.element_count()) != state_.table_words) {
    return UnexpectedOperands();
  }
  std::byte* room = nullptr;
  fetch_.Add(lookup_.where(), sizeof(uint32_t));
  fetch_.Add(&sizes->data, BytesOf(buffers.send_sizes));
  fetch_.AddRoom(&room, static_cast<size_t>(state_.table_words) * sizeof(int32_t));
  if (Status status = fetch_.Run(caller_); !status.ok()) return status;
  if (!lookup_.Read()) return UnexpectedOperands();
  table_ = static_cast<int32_t*>(buffers.table.untyped_data());
  args_ = {*sizes, reinterpret_cast<int32_t*>(room), this};
  return Status::Ok();
}

void GpuPlanCall::Start(int64_t run_id, const Status& loaded, Completion done) {
  if (loaded.ok()) return state_.counts->Start(run_id, lookup_.partition(), args_, std::move(done));
  const int32_t partition = lookup_.Find(caller_);
  if (partition < 0) return done(FailsAlone(*state_.site, loaded));
  state_.counts->FailGroup(run_id, partition, loaded, std::move(done));
}

Status GpuPlanCall::TakeTable() {
  fetch_.UsedByStream();
  return CopyTable(*state_.gpu, caller_, *state_.site, args_.table_words, table_);
}

}  // namespace fastjax::handlers
