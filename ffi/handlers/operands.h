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
  kTable,
  kIndices,
  kFactors,
  kStarts,
  kToken,
  kPartition,
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

// The operands of one call site.
class OperandList {
 public:
  OperandList() { places_.fill(-1); }
  // Reads names that are joined by commas. An error if `rules` lack one of them, or want others.
  static ffi::ErrorOr<OperandList> Read(const char* target, const std::vector<OperandRule>& rules,
                                        std::string_view names);

  bool Has(Operand operand) const { return places_[static_cast<size_t>(operand)] >= 0; }
  // Returns none where the call site has no such operand, or XLA passes less.
  std::optional<ffi::AnyBuffer> Find(Operand operand, const ffi::RemainingArgs& args) const;
  // Whether XLA passes as many operands as have been named.
  bool Fits(const ffi::RemainingArgs& args) const { return static_cast<int>(args.size()) == count_; }

 private:
  std::array<int, static_cast<size_t>(Operand::kCount)> places_;
  int count_ = 0;
};

// The buffers of any form of an exchange.
struct ExchangeBuffers {
  ffi::AnyBuffer result;
  ffi::AnyBuffer source;
  ffi::AnyBuffer base;
  ffi::AnyBuffer input_offsets;
  ffi::AnyBuffer send_sizes;
  ffi::AnyBuffer output_offsets;
  ffi::AnyBuffer recv_sizes;
  std::optional<ffi::AnyBuffer> partition;  // none where one device executes all ranks
  std::optional<ffi::AnyBuffer> table;      // none where the exchange plans itself
  std::optional<ffi::AnyBuffer> indices;    // of rows, where the exchange is indexed
  std::optional<ffi::AnyBuffer> factors;    // and of those that are summed, or of length 0
  std::optional<ffi::AnyBuffer> starts;     // in reverse on GPUs, of each row's entries in `indices`
  std::optional<ffi::AnyBuffer> token;      // of a start
};

// Returns none where XLA passes other operands than have been named.
std::optional<ExchangeBuffers> TakeExchange(const OperandList& operands, const ffi::RemainingArgs& args,
                                            const ffi::AnyBuffer& result);

struct PlanBuffers {
  ffi::AnyBuffer table;  // and after it the sizes of all devices, by position, where they are wanted
  ffi::AnyBuffer send_sizes;
  std::optional<ffi::AnyBuffer> partition;  // none where one device executes all ranks
};

std::optional<PlanBuffers> TakePlan(const OperandList& operands, const ffi::RemainingArgs& args,
                                    const ffi::AnyBuffer& result);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_OPERANDS_H_
