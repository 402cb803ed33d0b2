// Declares the operands of custom calls. A call site names those that it has in an attribute, in order, and handlers
// find them by their names, so that one call takes every form of an exchange.
#ifndef FASTJAX_HANDLERS_OPERANDS_H_
#define FASTJAX_HANDLERS_OPERANDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

namespace ffi = ::xla::ffi;

enum class Operand : uint8_t {
  kSource,
  kBase,
  kInputOffsets,
  kSendSizes,
  kOutputOffsets,
  kRecvSizes,
  kTable,      // lacking where the exchange plans itself
  kIndices,    // of rows, where the exchange is indexed
  kFactors,    // and of those that are summed, or of length 0
  kStarts,     // in reverse on GPUs, of each row's entries in the indices
  kToken,      // of a start
  kPartition,  // lacking where one device executes all ranks
  kCounts,
  kSlots,
  kRows,
  kCount
};

// An operand that a call takes.
struct OperandRule {
  const char* name;
  Operand operand;
  bool needed = true;
};

// The buffers of one call: its operands, by what they are, and its result.
struct Buffers {
  std::array<std::optional<ffi::AnyBuffer>, static_cast<size_t>(Operand::kCount)> operands;
  ffi::AnyBuffer result;

  bool Has(Operand operand) const { return operands[static_cast<size_t>(operand)].has_value(); }
  // The call has it.
  const ffi::AnyBuffer& operator[](Operand operand) const {
    return *operands[static_cast<size_t>(operand)];  // NOLINT(bugprone-unchecked-optional-access)
  }
};

// The operands of one call site.
class OperandList {
 public:
  OperandList() { places_.fill(-1); }
  // Reads names that are joined by commas. An error if `rules` lack one of them, or want others.
  static ffi::ErrorOr<OperandList> Read(const char* target, const std::vector<OperandRule>& rules,
                                        std::string_view names);

  bool Has(Operand operand) const { return places_[static_cast<size_t>(operand)] >= 0; }
  // Returns none where XLA passes more operands than have been named, or fewer.
  std::optional<Buffers> Take(const ffi::RemainingArgs& args, const ffi::AnyBuffer& result) const;

 private:
  std::array<int, static_cast<size_t>(Operand::kCount)> places_;
  int count_ = 0;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_OPERANDS_H_
