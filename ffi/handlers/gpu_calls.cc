#include "handlers/gpu_calls.h"

#include <string>
#include <utility>

#include "handlers/planning.h"
#include "handlers/transports.h"
#include "planner/table.h"

namespace fastjax::handlers {
namespace {

using transport::Status;
using transport::gpu::Caller;
using transport::gpu::Gpu;

ffi::Error Unexpected(const transport::CallSite& site) {
  return ffi::Error::InvalidArgument(site.Prefix() + "unexpected operands");
}

size_t BytesOf(const ffi::AnyBuffer& buffer) { return buffer.size_bytes(); }

bool IsPartition(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::U32 && buffer.element_count() == 1;
}

int32_t CheckedPartition(const uint32_t* value, const transport::CallSite& site) {
  return *value < static_cast<uint32_t>(site.partitions()) ? static_cast<int32_t>(*value) : -1;
}

// What of a stage table lies before its entries, in words.
int64_t WordsBeforeEntries(const transport::CallSite& site) {
  return planner::kHeaderWords + 2 * int64_t{site.group_size};
}

transport::gpu::TableShape ShapeOfTable(const transport::CallSite& site) {
  constexpr size_t kWord = sizeof(int32_t);
  return {static_cast<size_t>(WordsBeforeEntries(site)) * kWord, planner::kEntryWords * kWord,
          planner::kEntries * kWord};
}

}  // namespace

ffi::Error OpenGpuExchange(const ffi::Dictionary& attrs, bool plans, GpuExchangeSite* state, bool loopback) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  auto transport = GpuTransportOf(attrs, **site, loopback);
  if (!transport.has_value()) return transport.error();
  auto options = DecodeExchangeOptions(attrs, *site, plans);
  if (!options.has_value()) return options.error();
  state->site = *site;
  state->gpu = transport->gpu;
  state->exchange = transport->transport->OpenExchange(*site, std::move(*options));
  state->handed_over.Publish();
  return ffi::Error::Success();
}

ffi::Error OpenGpuPlan(const ffi::Dictionary& attrs, GpuPlanSite* state) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  auto transport = GpuTransportOf(attrs, **site, false);
  if (!transport.has_value()) return transport.error();
  auto planning = DecodePlanning(attrs, *site);
  if (!planning.has_value()) return planning.error();
  state->site = *site;
  state->gpu = transport->gpu;
  state->table_words = planning->table_words;
  state->counts = transport->transport->OpenCounts(*site, std::move(planning->function));
  state->handed_over.Publish();
  return ffi::Error::Success();
}

ffi::Error GpuExchangeCall::Load(const ExchangeBuffers& buffers) {
  state_.handed_over.Receive();
  const transport::CallSite& site = *state_.site;
  if (!DecodeExchange(buffers, site, &args_) || !IsPartition(buffers.partition)) return Unexpected(site);
  const auto* partition = static_cast<const uint32_t*>(buffers.partition.untyped_data());
  fetch_.Add(&partition, sizeof(*partition));
  fetch_.Add(&args_.input_offsets.data, BytesOf(buffers.input_offsets));
  fetch_.Add(&args_.send_sizes.data, BytesOf(buffers.send_sizes));
  fetch_.Add(&args_.output_offsets.data, BytesOf(buffers.output_offsets));
  fetch_.Add(&args_.recv_sizes.data, BytesOf(buffers.recv_sizes));
  if (args_.table != nullptr) {
    fetch_.AddTable(&args_.table, static_cast<size_t>(args_.table_words) * sizeof(*args_.table), ShapeOfTable(site));
  }
  if (const Status status = fetch_.Run(caller_); !status.ok()) return ToError(status);
  partition_ = CheckedPartition(partition, site);
  if (partition_ < 0) return Unexpected(site);
  args_.caller = &caller_;
  return ToError(CopyBase(*state_.gpu, caller_, buffers.base, args_.destination));
}

Status CopyBase(const Gpu& gpu, const Caller& caller, const ffi::AnyBuffer& base, std::byte* result) {
  const void* const from = base.untyped_data();
  if (from == result) return Status::Ok();
  return gpu.Check(gpu.driver().Copy(result, from, base.size_bytes(), caller.stream), caller.device,
                   "copy the output's rows");
}

Status CopyTable(const Gpu& gpu, const Caller& caller, const transport::CallSite& site, const int32_t* words,
                 int32_t* table) {
  const int64_t used = WordsBeforeEntries(site) + int64_t{planner::kEntryWords} * words[planner::kEntries];
  return gpu.Check(gpu.driver().Copy(table, words, static_cast<size_t>(used) * sizeof(*words), caller.stream),
                   caller.device, "copy a stage table");
}

ffi::Error GpuPlanCall::Load(const PlanBuffers& buffers) {
  state_.handed_over.Receive();
  const transport::CallSite& site = *state_.site;
  auto sizes = DecodeInts(buffers.send_sizes);
  if (!sizes.has_value() || sizes->size % site.group_size != 0 || !IsPartition(buffers.partition) ||
      static_cast<int64_t>(buffers.table.element_count()) != state_.table_words) {
    return Unexpected(site);
  }
  const auto* where = static_cast<const uint32_t*>(buffers.partition.untyped_data());
  std::byte* room = nullptr;
  fetch_.Add(&where, sizeof(*where));
  fetch_.Add(&sizes->data, BytesOf(buffers.send_sizes));
  fetch_.AddRoom(&room, static_cast<size_t>(state_.table_words) * sizeof(int32_t));
  if (const Status status = fetch_.Run(caller_); !status.ok()) return ToError(status);
  partition_ = CheckedPartition(where, site);
  if (partition_ < 0) return Unexpected(site);
  table_ = buffers.table.typed_data();
  args_ = {*sizes, reinterpret_cast<int32_t*>(room)};
  return ffi::Error::Success();
}

Status GpuPlanCall::Finish() {
  fetch_.UsedByStream();
  return CopyTable(*state_.gpu, caller_, *state_.site, args_.table_words, table_);
}

}  // namespace fastjax::handlers
