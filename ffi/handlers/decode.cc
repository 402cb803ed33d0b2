#include "handlers/decode.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "exchange/int_view.h"
#include "kernels/copy.h"
#include "planner/hash.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "runtime/plan_cache.h"

namespace fastjax::handlers {
namespace {

// Decodes what plans depend on besides the traffic, if the call site plans.
uint64_t SettingsOf(const CallAttributes& attrs) {
  if (attrs.scheduler < 0) return 0;
  const int64_t rest[] = {attrs.scheduler, attrs.plan_row_bytes};
  return planner::HashInt64(attrs.topology.data(), static_cast<int64_t>(attrs.topology.size()),
                            planner::HashInt64(rest, 2, 0));
}

// Decodes two lists by partition. There are none where one process has all devices.
bool DecodeProcesses(const CallAttributes& attrs, CallSite* site) {
  if (attrs.processes.empty() && attrs.rails.empty()) return true;
  for (const Ints* list : {&attrs.processes, &attrs.rails}) {
    const auto fits = [](int64_t value) { return value >= 0 && value <= std::numeric_limits<int32_t>::max(); };
    if (list->size() != site->group_of.size() || !std::all_of(list->begin(), list->end(), fits)) return false;
  }
  site->process_of.assign(attrs.processes.begin(), attrs.processes.end());
  site->rail_of.assign(attrs.rails.begin(), attrs.rails.end());
  return true;
}

// Of a topology that cannot be read, which is for planning to report, nothing is known.
void ReadNics(CallSite* site) {
  planner::Topology topology;
  const auto words = static_cast<int64_t>(site->topology.size());
  if (*planner::ReadTopology(site->topology.data(), words, &topology) != 0) return;
  site->nic_bandwidth = topology.fastest_nic();
  site->scale_out_latency_ns = topology.scale_out_latency_ns;
}

// Returns the integers of a buffer of one dimension. Where one device has all `ranks`, there is a dimension of them
// before it, and these are the integers of rank 0, behind which the others' lie.
std::optional<IntView> DecodeInts(const ffi::AnyBuffer& buffer, int64_t ranks) {
  // In the order of IntKind.
  constexpr ffi::DataType kTypes[] = {ffi::DataType::S8, ffi::DataType::S16, ffi::DataType::S32, ffi::DataType::S64,
                                      ffi::DataType::U8, ffi::DataType::U16, ffi::DataType::U32, ffi::DataType::U64};
  const auto* const found = std::find(std::begin(kTypes), std::end(kTypes), buffer.element_type());
  const auto dimensions = buffer.dimensions();
  if (found == std::end(kTypes) || dimensions.size() != (ranks == 0 ? 1 : 2)) return std::nullopt;
  if (ranks != 0 && dimensions.front() != ranks) return std::nullopt;
  return IntView{buffer.untyped_data(), dimensions.back(), static_cast<IntKind>(found - std::begin(kTypes))};
}

kernels::ElementKind DecodeElement(ffi::DataType type) {
  using kernels::ElementKind;
  constexpr std::pair<ffi::DataType, ElementKind> kKinds[] = {
      {ffi::DataType::F16, ElementKind::kF16}, {ffi::DataType::BF16, ElementKind::kBF16},
      {ffi::DataType::F32, ElementKind::kF32}, {ffi::DataType::C64, ElementKind::kF32},
      {ffi::DataType::F64, ElementKind::kF64}, {ffi::DataType::C128, ElementKind::kF64}};
  for (const auto& [known, kind] : kKinds) {
    if (known == type) return kind;
  }
  return ElementKind::kOpaque;
}

// Bytes of one row: everything behind the leading dimension, or so many.
int64_t RowBytes(const ffi::AnyBuffer& buffer, size_t leading = 1) {
  auto bytes = static_cast<int64_t>(ffi::ByteWidth(buffer.element_type()));
  const auto dimensions = buffer.dimensions();
  for (size_t i = leading; i < dimensions.size(); ++i) bytes *= dimensions[i];
  return bytes;
}

int64_t Count(const ffi::AnyBuffer& buffer) { return static_cast<int64_t>(buffer.element_count()); }

bool IsWords(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::S32 && buffer.dimensions().size() == 1;
}

// Adds indices and factors of an indexed exchange. Its slices are ranges of indices, so operand space has as many rows
// as there are indices. In reverse, rows are summed, and the result may have a wider type. On GPUs, indices
// stay on the device. False if shapes do not fit.
bool DecodeIndexed(const Buffers& buffers, bool reverse, ExchangeArgs* args) {
  const ffi::AnyBuffer& indices = buffers[Operand::kIndices];
  if (!IsWords(indices)) return false;
  const ffi::AnyBuffer& given = buffers[Operand::kFactors];
  const int64_t result_bytes = RowBytes(buffers.result);
  const int64_t factors = Count(given);
  if (reverse) {
    args->sum = DecodeElement(buffers.result.element_type());
    const kernels::SumTypes types = args->sum_types();
    const auto elements = [](int64_t bytes, kernels::ElementKind kind) {
      return bytes / static_cast<int64_t>(kernels::ElementBytes(kind));
    };
    if (elements(args->row_bytes, types.element) != elements(result_bytes, types.sum)) return false;
    if (types.element != types.sum && !kernels::CanSum(types)) return false;
    if (factors > 0) {
      if (factors != args->source_rows || !kernels::CanScale(types)) return false;
      if (DecodeElement(given.element_type()) != types.sum) return false;
      args->factors = static_cast<const std::byte*>(given.untyped_data());
    }
  } else if (args->row_bytes != result_bytes || factors > 0) {
    return false;
  }
  int64_t* const rows = reverse ? &args->destination_rows : &args->source_rows;
  args->indexed_rows = *rows;
  *rows = Count(indices);
  const auto* const words = static_cast<const int32_t*>(indices.untyped_data());
  if (!buffers.Has(Operand::kStarts)) {
    args->indices = words;
    return true;
  }
  const ffi::AnyBuffer& starts = buffers[Operand::kStarts];
  if (!IsWords(starts)) return false;
  args->device_indices = words;
  args->device_starts = static_cast<const int32_t*>(starts.untyped_data());
  return Count(starts) == (reverse ? args->indexed_rows + 1 : 0);
}

}  // namespace

ffi::ErrorOr<std::shared_ptr<const CallSite>> DecodeCallSite(const CallAttributes& attrs) {
  const Ints& replica_groups = attrs.replica_groups;
  const auto size = static_cast<size_t>(attrs.group_devices);
  if (size == 0 || attrs.position_ranks.size() != size || replica_groups.size() % size != 0) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: replica_groups and group_size disagree"));
  }
  auto site = std::make_shared<CallSite>(static_cast<const CallSite&>(attrs));
  site->settings = SettingsOf(attrs);
  ReadNics(site.get());
  site->group_size = static_cast<int32_t>(size);
  site->group_of.assign(replica_groups.size(), -1);
  site->position_of.assign(replica_groups.size(), -1);
  site->rank_of.assign(size, -1);
  site->position_at.assign(size, -1);
  for (size_t i = 0; i < replica_groups.size(); ++i) {
    const auto partition = static_cast<size_t>(replica_groups[i]);
    if (partition >= site->group_of.size() || site->group_of[partition] >= 0) {
      return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: replica_groups must name every partition once"));
    }
    site->group_of[partition] = static_cast<int32_t>(i / size);
    site->position_of[partition] = static_cast<int32_t>(i % size);
    site->partition_at.push_back(static_cast<int32_t>(partition));
  }
  for (size_t p = 0; p < size; ++p) {
    const auto rank = static_cast<size_t>(attrs.position_ranks[p]);
    if (rank >= size || site->position_at[rank] >= 0) {
      return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: rank_of must be a permutation"));
    }
    site->rank_of[p] = static_cast<int32_t>(rank);
    site->position_at[rank] = static_cast<int32_t>(p);
  }
  if (!DecodeProcesses(attrs, site.get())) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: processes and rails must be given for every device"));
  }
  return std::shared_ptr<const CallSite>(std::move(site));
}

ffi::ErrorOr<planner::Topology> DecodeTopology(const CallAttributes& attrs) {
  planner::Topology topology;
  const std::string wrong =
      planner::ReadTopology(attrs.topology.data(), static_cast<int64_t>(attrs.topology.size()), &topology);
  if (!wrong.empty()) return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: " + wrong));
  return topology;
}

ffi::ErrorOr<Planning> DecodePlanning(const CallAttributes& attrs, const std::shared_ptr<const CallSite>& site) {
  const auto topology = DecodeTopology(attrs);
  if (!topology.has_value()) return ffi::Unexpected(topology.error());
  if (topology->devices() != site->group_size || attrs.scheduler < 0 || attrs.scheduler >= planner::NumSchedulers()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: the topology does not fit the group"));
  }
  const auto kind = static_cast<planner::Scheduler>(attrs.scheduler);
  auto cache = PlanCache::Of(attrs.topology, *topology, kind, attrs.plan_row_bytes);
  Planning planning;
  planning.plan = [cache, site](const int64_t* traffic, const TakePlan& take, bool* made) {
    const char* why = cache->Plan(traffic, take, made);
    return *why == '\0' ? Status::Ok() : Status::Invalid(site->Prefix() + why);
  };
  planning.table_words = planner::TableWords(*topology, kind);
  return planning;
}

bool IsPartition(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::U32 && buffer.element_count() == 1;
}

int32_t CheckedPartition(uint32_t value, const CallSite& site) {
  return value < static_cast<uint32_t>(site.partitions()) ? static_cast<int32_t>(value) : -1;
}

int32_t DecodePartition(const ffi::AnyBuffer& partition, const CallSite& site) {
  if (!IsPartition(partition)) return -1;
  return CheckedPartition(*static_cast<const uint32_t*>(partition.untyped_data()), site);
}

bool DecodeExchange(const Buffers& buffers, const CallSite& site, bool reverse, ExchangeArgs* args) {
  const bool of_all = !buffers.Has(Operand::kPartition);
  const int64_t ranks = of_all ? site.group_size : 0;
  const size_t rows_at = of_all ? 1 : 0;  // the dimension of rows
  const auto in = DecodeInts(buffers[Operand::kInputOffsets], ranks);
  const auto send = DecodeInts(buffers[Operand::kSendSizes], ranks);
  const auto out = DecodeInts(buffers[Operand::kOutputOffsets], ranks);
  const auto recv = DecodeInts(buffers[Operand::kRecvSizes], ranks);
  if (!in || !send || !out || !recv || in->size != send->size || out->size != send->size || recv->size != send->size ||
      send->size % site.group_size != 0) {
    return false;
  }
  const ffi::AnyBuffer& source = buffers[Operand::kSource];
  const ffi::AnyBuffer& result = buffers.result;
  for (const ffi::AnyBuffer* rows : {&source, &result}) {
    if (rows->dimensions().size() <= rows_at || (of_all && rows->dimensions().front() != ranks)) return false;
  }
  const bool indexed = buffers.Has(Operand::kIndices);
  args->row_bytes = RowBytes(source, rows_at + 1);
  if (!indexed && args->row_bytes != RowBytes(result, rows_at + 1)) return false;
  if (buffers[Operand::kBase].size_bytes() != result.size_bytes()) return false;
  args->source = static_cast<const std::byte*>(source.untyped_data());
  args->source_rows = source.dimensions()[rows_at];
  args->destination = static_cast<std::byte*>(result.untyped_data());
  args->destination_rows = result.dimensions()[rows_at];
  args->element = DecodeElement(source.element_type());
  args->input_offsets = *in;
  args->send_sizes = *send;
  args->output_offsets = *out;
  args->recv_sizes = *recv;
  if (buffers.Has(Operand::kTable)) {
    const ffi::AnyBuffer& table = buffers[Operand::kTable];
    if (!IsWords(table)) return false;
    args->table = static_cast<const int32_t*>(table.untyped_data());
    args->table_words = Count(table);
  }
  return !indexed || DecodeIndexed(buffers, reverse, args);
}

bool DecodeCounts(const Buffers& buffers, const CallSite& site, int64_t table_words, CountsArgs* args) {
  const auto sizes = DecodeInts(buffers[Operand::kSendSizes], buffers.Has(Operand::kPartition) ? 0 : site.group_size);
  const bool plans = table_words > 0;
  if (!sizes || !IsWords(buffers.result) || (plans && sizes->size % site.group_size != 0)) return false;
  args->send_sizes = *sizes;
  args->table_words = static_cast<int32_t*>(buffers.result.untyped_data());
  const int64_t words = Count(buffers.result);
  if (plans && words == table_words) return true;
  args->gathered = args->table_words + table_words;
  return words == table_words + site.group_size * sizes->size;
}

ffi::ErrorOr<CallAttributes> DecodeExchangeCall(const ffi::Dictionary& dictionary) {
  auto attrs = DecodeAttributes(GetContract().exchange, dictionary);
  if (!attrs.has_value()) return attrs;
  const auto refused = [](const char* why) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(std::string("fastjax: in an exchange, ") + why));
  };
  const auto has = [&](Operand operand) { return attrs->operands.Has(operand); };
  if (attrs->started && !has(Operand::kPartition)) return refused("nothing starts that one device does for all ranks");
  if (has(Operand::kIndices) != has(Operand::kFactors)) return refused("indices and factors come together");
  if (has(Operand::kStarts) && !has(Operand::kIndices)) return refused("starts are of indices, and there are none");
  if (has(Operand::kStarts) && has(Operand::kToken)) return refused("the exchange of a start takes no starts of rows");
  if (has(Operand::kTable)) {
    if (!has(Operand::kPartition)) return refused("all ranks on one device take no table, which is of one rank");
    return attrs;
  }
  if (attrs->scheduler < 0) return refused("there is neither a table nor a scheduler to make one");
  if (!has(Operand::kPartition) && (has(Operand::kIndices) || has(Operand::kToken))) {
    return refused("all ranks on one device take neither indices nor a token");
  }
  return attrs;
}

ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site) {
  ExchangeOptions options;
  options.reverse = attrs.reverse;
  options.transposed_table = attrs.transposed_table;
  options.check_overlaps = attrs.check_overlaps;
  options.drop = attrs.drop;
  options.indexed = attrs.operands.Has(Operand::kIndices);
  if (!attrs.operands.Has(Operand::kTable)) {
    auto planning = DecodePlanning(attrs, site);
    if (!planning.has_value()) return ffi::Unexpected(planning.error());
    options.plan = std::move(planning->plan);
  }
  return options;
}

ffi::Error ToError(const Status& status) {
  // In the order of Code.
  constexpr ffi::ErrorCode kCodes[] = {ffi::ErrorCode::kOk, ffi::ErrorCode::kInvalidArgument,
                                       ffi::ErrorCode::kDeadlineExceeded, ffi::ErrorCode::kUnavailable,
                                       ffi::ErrorCode::kInternal};
  return status.ok() ? ffi::Error::Success() : ffi::Error(kCodes[static_cast<size_t>(status.code)], status.message);
}

Status UnexpectedOperands() { return Status::Invalid("unexpected operands"); }

Status FailsAlone(const CallSite& site, const Status& why) {
  return {why.code, site.Prefix() + "a device that does not know its number cannot take part: " + why.message};
}

Completion Completing(ffi::Promise promise) {
  return [promise = std::move(promise)](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
}

XLA_FFI_Error* ExhaustedError(const XLA_FFI_Api* api, const char* what) {
  const std::string message = std::string("fastjax: ") + what;
  XLA_FFI_Error_Create_Args args;
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.extension_start = nullptr;
  args.message = message.c_str();
  args.errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  return api->XLA_FFI_Error_Create(&args);
}

ffi::Future Failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

}  // namespace fastjax::handlers
