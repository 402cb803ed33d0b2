#include "handlers/contract.h"

#include <cstddef>
#include <string>
#include <type_traits>

#include "handlers/operands.h"

namespace fastjax::handlers {
namespace {

using A = CallAttributes;

Attribute Added(Attribute attribute) {
  attribute.presence = Presence::kAdded;
  return attribute;
}

Contract Declare() {
  const AttributeGroup site = {"a call site's",
                               {{"operation", &A::operation},
                                Added({"name", &A::name}),
                                {"axis", &A::axis},
                                {"program", &A::program},
                                {"shapes", &A::shapes},
                                {"channel", &A::channel},
                                {"timeout_ms", &A::timeout_ms},
                                {"group_size", &A::group_size},
                                {"replica_groups", &A::replica_groups},
                                {"rank_of", &A::rank_of},
                                Added({"platform", &A::platform}),
                                {"tokens", &A::tokens, Presence::kOptional},
                                {"top_k", &A::top_k, Presence::kOptional}}};
  const AttributeGroup processes = {"a call site's",
                                    {{"processes", &A::processes, Presence::kOptional},
                                     {"rails", &A::rails, Presence::kOptional},
                                     {"module", &A::module, Presence::kOptional}}};
  const Attribute topology = {"topology", &A::topology};
  const AttributeGroup planning = {"a plan's", {topology, {"scheduler", &A::scheduler}, {"row_bytes", &A::row_bytes}}};
  const AttributeGroup planned = {"a plan's", {Added(topology)}};
  const AttributeGroup exchange = {"an exchange's",
                                   {{"reverse", &A::reverse},
                                    {"transposed_table", &A::transposed_table},
                                    Added({"check_overlaps", &A::check_overlaps}),
                                    {"gpu_stream", &A::gpu_stream, Presence::kOptional}}};
  const AttributeGroup experts = {"a plan's", {Added({"experts", &A::experts})}};
  const AttributeGroup stage = {"a call site's", {{"channel", &A::channel}}};
  const AttributeGroup rank = {"a plan's", {{"rank", &A::rank}}};

  Contract contract;
  contract.plan = {"fastjax_plan_v1", NamesOf<PlanOperands>(), {site, processes, planning, experts}};
  contract.gather = {"fastjax_gather_v1", NamesOf<GatherOperands>(), {site, processes}};
  contract.exchange = {"fastjax_exchange_v1", NamesOf<ExchangeOperands>(), {site, processes, planned, exchange}};
  contract.indexed_exchange = {
      "fastjax_indexed_exchange_v1", NamesOf<IndexedExchangeOperands>(), {site, processes, planned, exchange}};
  contract.gpu_indexed_exchange = {
      "fastjax_gpu_indexed_exchange_v1", NamesOf<GpuIndexedExchangeOperands>(), {site, processes, planned, exchange}};
  contract.stage = {"fastjax_stage_v1", NamesOf<StageOperands>(), {stage}};
  contract.indexed_stage = {"fastjax_indexed_stage_v1", NamesOf<IndexedStageOperands>(), {stage}};
  contract.staged_exchange = {
      "fastjax_staged_exchange_v1", NamesOf<StagedExchangeOperands>(), {site, processes, planned, exchange}};
  contract.indexed_staged_exchange = contract.staged_exchange;
  contract.indexed_staged_exchange.target = "fastjax_indexed_staged_exchange_v1";
  contract.plan_exchange = {
      "fastjax_plan_exchange_v1", NamesOf<PlanExchangeOperands>(), {site, processes, planning, exchange}};
  contract.loopback = {"fastjax_loopback_v1", NamesOf<LoopbackOperands>(), {site, planning, exchange}};
  contract.loopback_plan = {"fastjax_loopback_plan_v1", NamesOf<LoopbackPlanOperands>(), {site, planning, rank}};
  contract.after = {"fastjax_after_v1", NamesOf<AfterOperands>(), {}};
  contract.detached_after = contract.after;
  contract.detached_after.target = "fastjax_detached_after_v1";
  contract.empty = {"fastjax_empty_v1", NamesOf<EmptyOperands>(), {}};
  return contract;
}

// False if there is no such attribute, or if it has another type.
bool Decode(const ffi::Dictionary& attrs, const Attribute& attribute, CallAttributes* result) {
  return std::visit(
      [&](auto field) {
        using Declared = std::decay_t<decltype(result->*field)>;
        using Type = std::conditional_t<std::is_same_v<Declared, std::optional<Ints>>, Ints, Declared>;
        const auto value = attrs.get<Type>(attribute.name);
        if (value.has_value()) result->*field = *value;
        return value.has_value();
      },
      attribute.field);
}

}  // namespace

const char* Attribute::kind() const {
  static constexpr const char* kKinds[] = {"string", "bool", "int64", "int64[]", "int64[]"};
  return kKinds[field.index()];
}

const Contract& GetContract() {
  static const auto* const contract = new Contract(Declare());
  return *contract;
}

ffi::ErrorOr<CallAttributes> DecodeAttributes(const CustomCall& call, const ffi::Dictionary& attrs) {
  CallAttributes result;
  for (const AttributeGroup& group : call.groups) {
    for (const Attribute& attribute : group.attributes) {
      if (Decode(attrs, attribute, &result) || attribute.presence != Presence::kAlways) continue;
      return ffi::Unexpected(
          ffi::Error::InvalidArgument(std::string("fastjax: ") + group.name + " attributes are incomplete"));
    }
  }
  return result;
}

}  // namespace fastjax::handlers
