#include "handlers/operands.h"

#include <algorithm>
#include <string>

namespace fastjax::handlers {
namespace {

ffi::Error Refused(const char* target, const char* what, std::string_view name) {
  return ffi::Error::InvalidArgument("fastjax: the operands of " + std::string(target) + " " + what + " \"" +
                                     std::string(name) + "\"");
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

std::optional<ffi::AnyBuffer> OperandList::Find(Operand operand, const ffi::RemainingArgs& args) const {
  const int place = places_[static_cast<size_t>(operand)];
  if (place < 0 || place >= static_cast<int>(args.size())) return std::nullopt;
  const auto found = args.get<ffi::AnyBuffer>(static_cast<size_t>(place));
  if (!found.has_value()) return std::nullopt;
  return *found;
}

std::optional<ExchangeBuffers> TakeExchange(const OperandList& operands, const ffi::RemainingArgs& args,
                                            const ffi::AnyBuffer& result) {
  if (!operands.Fits(args)) return std::nullopt;
  const auto find = [&](Operand operand) { return operands.Find(operand, args); };
  const auto source = find(Operand::kSource);
  const auto base = find(Operand::kBase);
  const auto input_offsets = find(Operand::kInputOffsets);
  const auto send_sizes = find(Operand::kSendSizes);
  const auto output_offsets = find(Operand::kOutputOffsets);
  const auto recv_sizes = find(Operand::kRecvSizes);
  if (!source || !base || !input_offsets || !send_sizes || !output_offsets || !recv_sizes) return std::nullopt;
  return ExchangeBuffers{result,
                         *source,
                         *base,
                         *input_offsets,
                         *send_sizes,
                         *output_offsets,
                         *recv_sizes,
                         find(Operand::kPartition),
                         find(Operand::kTable),
                         find(Operand::kIndices),
                         find(Operand::kFactors),
                         find(Operand::kStarts),
                         find(Operand::kToken)};
}

std::optional<PlanBuffers> TakePlan(const OperandList& operands, const ffi::RemainingArgs& args,
                                    const ffi::AnyBuffer& result) {
  if (!operands.Fits(args) || result.element_type() != ffi::DataType::S32) return std::nullopt;
  const auto send_sizes = operands.Find(Operand::kSendSizes, args);
  if (!send_sizes) return std::nullopt;
  return PlanBuffers{result, *send_sizes, operands.Find(Operand::kPartition, args)};
}

}  // namespace fastjax::handlers
