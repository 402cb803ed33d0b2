// The custom calls: operands and attributes of each, declared once. fastjax/traced/contract.py emits calls by these
// declarations. Compiled and exported programs contain all of it, so it is a format.
#ifndef FASTJAX_HANDLERS_CONTRACT_H_
#define FASTJAX_HANDLERS_CONTRACT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "exchange/call_site.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

namespace ffi = ::xla::ffi;

// A call site names the operands that it has in an attribute, in order, and handlers find them by their names, so that
// one call takes every form of an exchange.
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

using Ints = std::vector<int64_t>;

// The attributes of a call; those that the call lacks have the values below, or those of CallSite. What a call site
// only tells others is decoded into it; the rest of it, empty here, is filled by DecodeCallSite.
struct CallAttributes : CallSite {
  std::string operand_names;  // joined by commas
  OperandList operands;       // what they name
  int64_t group_devices = 0;
  Ints replica_groups;  // partitions, group by group, in order of position
  Ints position_ranks;  // by position in the group
  // Both are given where devices of several processes take part, and are indexed by partition.
  Ints processes;
  Ints rails;
  bool reverse = false;
  bool transposed_table = false;
  bool check_overlaps = false;
  bool drop = false;     // rows out of range
  bool started = false;  // on GPUs: it goes on beside what follows, until a done of its result
  int64_t rank = -1;
  bool detached = false;  // what follows runs on a thread of its own
  // Of a levelling, in the words of planner::LevellingShape, whose servers are the call site's.
  int64_t devices = 0;
  int64_t copies = 0;
  int64_t cost_rows = 0;
};

struct Attribute {
  using Field = std::variant<std::string CallAttributes::*, bool CallAttributes::*, int64_t CallAttributes::*,
                             Ints CallAttributes::*>;

  const char* name;
  Field field;  // whose type is the attribute's
  bool optional = false;

  // "string", "bool", "int64" or "int64[]"
  const char* kind() const;
};

struct CustomCall {
  const char* target;
  std::vector<OperandRule> operands;  // that it may name; others have no names, and are told apart by their places
  std::vector<Attribute> attributes;
  int32_t in_place = -1;  // the place of the operand whose memory the result takes, if any
};

struct Contract {
  CustomCall plan;      // and gathers counts, or only does that
  CustomCall exchange;  // in any form
  CustomCall start;     // gives an exchange its place in the order of exchanges
  CustomCall done;
  CustomCall after;
  CustomCall level;  // chooses which devices compute rows of popular experts
  CustomCall deal;   // deals rows to them
  CustomCall empty;

  std::vector<const CustomCall*> calls() const {
    return {&plan, &exchange, &start, &done, &after, &level, &deal, &empty};
  }
};

const Contract& GetContract();

// Reads the attributes that `call` declares, the names of operands among them, and ignores all others.
ffi::ErrorOr<CallAttributes> DecodeAttributes(const CustomCall& call, const ffi::Dictionary& attrs);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_CONTRACT_H_
