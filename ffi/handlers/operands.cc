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

}  // namespace fastjax::handlers
