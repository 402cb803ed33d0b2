#include "handlers/decode.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

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

int64_t RowBytes(const ffi::AnyBuffer& buffer, size_t leading) {
  auto bytes = static_cast<int64_t>(ffi::ByteWidth(buffer.element_type()));
  const auto dimensions = buffer.dimensions();
  for (size_t i = leading; i < dimensions.size(); ++i) bytes *= dimensions[i];
  return bytes;
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
