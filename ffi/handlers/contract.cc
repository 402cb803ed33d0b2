#include "handlers/contract.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace fastjax::handlers {
namespace {

using A = CallAttributes;

constexpr bool kOptional = true;

std::vector<Attribute> Joined(std::initializer_list<std::vector<Attribute>> groups) {
  std::vector<Attribute> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

Contract Declare() {
  const std::vector<Attribute> site = {{"operands", &A::operand_names},
                                       {"operation", &A::operation},
                                       {"name", &A::name},
                                       {"axis", &A::axis},
                                       {"program", &A::program},
                                       {"shapes", &A::shapes},
                                       {"channel", &A::channel},
                                       {"timeout_ms", &A::timeout_ms},
                                       {"group_size", &A::group_devices},
                                       {"replica_groups", &A::replica_groups},
                                       {"rank_of", &A::position_ranks},
                                       {"platform", &A::platform},
                                       {"tokens", &A::tokens, kOptional},
                                       {"top_k", &A::top_k, kOptional},
                                       {"processes", &A::processes, kOptional},
                                       {"rails", &A::rails, kOptional},
                                       {"module", &A::module, kOptional},
                                       {"topology", &A::topology, kOptional},
                                       {"scheduler", &A::scheduler, kOptional},
                                       {"row_bytes", &A::plan_row_bytes, kOptional}};
  const std::vector<Attribute> exchange = {{"reverse", &A::reverse},
                                           {"transposed_table", &A::transposed_table},
                                           {"check_overlaps", &A::check_overlaps},
                                           {"drop", &A::drop, kOptional},
                                           {"started", &A::started, kOptional}};
  const std::vector<Attribute> plan = {
      {"experts", &A::experts, kOptional}, {"servers", &A::servers, kOptional}, {"rank", &A::rank, kOptional}};
  const std::vector<Attribute> levelling = {
      {"operands", &A::operand_names}, {"servers", &A::servers}, {"devices", &A::devices}, {"copies", &A::copies}};

  Contract contract;
  contract.plan = {"fastjax_plan_v2",
                   {{"send_sizes", Operand::kSendSizes}, {"partition", Operand::kPartition, false}},
                   Joined({site, plan})};
  contract.exchange = {"fastjax_exchange_v2",
                       {{"source", Operand::kSource},
                        {"base", Operand::kBase},
                        {"input_offsets", Operand::kInputOffsets},
                        {"send_sizes", Operand::kSendSizes},
                        {"output_offsets", Operand::kOutputOffsets},
                        {"recv_sizes", Operand::kRecvSizes},
                        {"table", Operand::kTable, false},
                        {"indices", Operand::kIndices, false},
                        {"factors", Operand::kFactors, false},
                        {"starts", Operand::kStarts, false},
                        {"token", Operand::kToken, false},
                        {"partition", Operand::kPartition, false}},
                       Joined({site, exchange}),
                       1};
  // Without its number XLA would merge two calls of the same operands.
  contract.start = {"fastjax_start_v2", {}, {{"channel", &A::channel}}};
  contract.done = {"fastjax_done_v2", {}, {}, 0};
  contract.after = {"fastjax_after_v2", {}, {{"detached", &A::detached}}, 0};
  contract.level = {
      "fastjax_level_v2", {{"rows", Operand::kRows}}, Joined({levelling, {{"cost_rows", &A::cost_rows}}})};
  contract.deal = {"fastjax_deal_v2",
                   {{"counts", Operand::kCounts}, {"slots", Operand::kSlots}, {"rows", Operand::kRows}},
                   levelling};
  contract.empty = {"fastjax_empty_v2", {}, {}};
  return contract;
}

ffi::Error Refused(const char* target, const char* what, std::string_view name) {
  return ffi::Error::InvalidArgument("fastjax: the operands of " + std::string(target) + " " + what + " \"" +
                                     std::string(name) + "\"");
}

// False if there is no such attribute, or if it has another type.
bool Decode(const ffi::Dictionary& attrs, const Attribute& attribute, CallAttributes* result) {
  const auto as = [&](auto type, auto assign) {
    const auto value = attrs.get<decltype(type)>(attribute.name);
    if (value.has_value()) assign(*value);
    return value.has_value();
  };
  return std::visit(
      [&](auto field) {
        auto& to = result->*field;
        using Type = std::decay_t<decltype(to)>;
        if constexpr (std::is_same_v<Type, Ints>) {
          return as(ffi::Span<const int64_t>(), [&](const auto& ints) { to.assign(ints.begin(), ints.end()); });
        } else if constexpr (std::is_same_v<Type, std::string>) {
          return as(std::string_view(), [&](std::string_view text) { to = text; });
        } else {
          return as(Type(), [&](Type value) { to = value; });
        }
      },
      attribute.field);
}

}  // namespace

ffi::ErrorOr<OperandList> OperandList::Read(const char* target, const std::vector<OperandRule>& rules,
                                            std::string_view names) {
  OperandList list;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const OperandRule& r) { return r.name == name; });
    if (rule == rules.end()) return ffi::Unexpected(Refused(target, "cannot be", name));
    int& place = list.places_[static_cast<size_t>(rule->operand)];
    if (place >= 0) return ffi::Unexpected(Refused(target, "name twice", name));
    place = list.count_++;
  }
  for (const OperandRule& rule : rules) {
    if (rule.needed && !list.Has(rule.operand)) return ffi::Unexpected(Refused(target, "lack", rule.name));
  }
  return list;
}

std::optional<Buffers> OperandList::Take(const ffi::RemainingArgs& args, const ffi::AnyBuffer& result) const {
  if (static_cast<int>(args.size()) != count_) return std::nullopt;
  Buffers buffers{{}, result};
  for (size_t operand = 0; operand < places_.size(); ++operand) {
    if (places_[operand] < 0) continue;
    const auto found = args.get<ffi::AnyBuffer>(static_cast<size_t>(places_[operand]));
    if (!found.has_value()) return std::nullopt;
    buffers.operands[operand] = *found;
  }
  return buffers;
}

const char* Attribute::kind() const {
  static constexpr const char* kKinds[] = {"string", "bool", "int64", "int64[]"};
  return kKinds[field.index()];
}

const Contract& GetContract() {
  static const auto* const contract = new Contract(Declare());
  return *contract;
}

ffi::ErrorOr<CallAttributes> DecodeAttributes(const CustomCall& call, const ffi::Dictionary& attrs) {
  CallAttributes result;
  for (const Attribute& attribute : call.attributes) {
    if (Decode(attrs, attribute, &result) || attribute.optional) continue;
    return ffi::Unexpected(ffi::Error::InvalidArgument(std::string("fastjax: ") + call.target + " lacks \"" +
                                                       attribute.name + "\", or it is of another type"));
  }
  const bool plans = result.scheduler >= 0 || result.plan_row_bytes > 0;
  if (plans && (result.scheduler < 0 || result.plan_row_bytes <= 0 || result.topology.empty())) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a plan's attributes are incomplete"));
  }
  auto operands = OperandList::Read(call.target, call.operands, result.operand_names);
  if (!operands.has_value()) return ffi::Unexpected(operands.error());
  result.operands = *operands;
  return result;
}

}  // namespace fastjax::handlers
