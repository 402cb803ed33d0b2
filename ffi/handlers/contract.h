// The custom calls: operands and attributes of each, declared once. fastjax/traced/contract.py has the same for Python,
// and a test compares the two. Compiled and exported programs contain all of it, so it is a format.
#ifndef FASTJAX_HANDLERS_CONTRACT_H_
#define FASTJAX_HANDLERS_CONTRACT_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

namespace ffi = ::xla::ffi;

using Ints = ffi::Span<const int64_t>;

// The attributes of a call; those that the call lacks have the values below. Strings and integers lie in XLA's memory,
// and are valid while the call is instantiated.
struct CallAttributes {
  std::string_view operation;
  std::string_view name;
  std::string_view axis;
  std::string_view program;
  std::string_view shapes;
  int64_t channel = 0;
  int64_t timeout_ms = 0;
  int64_t group_size = 0;
  Ints replica_groups;  // partitions, group by group, in order of position
  Ints rank_of;         // by position in the group
  std::string_view platform;
  // Both are given where devices of several processes take part, and are indexed by partition.
  std::optional<Ints> processes;
  std::optional<Ints> rails;
  std::string_view module;  // the fingerprint of the module that it was lowered into, likewise
  // Of a layer of experts: a device's tokens, and the experts that each chooses.
  int64_t tokens = 0;
  int64_t top_k = 0;
  Ints topology;           // in the format that planner::ReadTopology reads
  int64_t scheduler = -1;  // -1: the call does not plan
  int64_t row_bytes = 0;
  int64_t experts = 0;
  bool reverse = false;
  bool transposed_table = false;
  bool check_overlaps = false;
  bool gpu_stream = false;  // XLA runs it on another stream than the one that computes
  int64_t rank = -1;
};

// Which programs have an attribute.
enum class Presence : uint8_t {
  kAlways,
  kAdded,  // every program of this version has it; those that an earlier version exported may lack it
  kOptional,
};

struct Attribute {
  using Field = std::variant<std::string_view CallAttributes::*, bool CallAttributes::*, int64_t CallAttributes::*,
                             Ints CallAttributes::*, std::optional<Ints> CallAttributes::*>;

  const char* name;
  Field field;  // whose type is the attribute's
  Presence presence = Presence::kAlways;

  // "string", "bool", "int64" or "int64[]"
  const char* kind() const;
};

// Attributes that belong together. The error for a call that lacks one of them names the group.
struct AttributeGroup {
  const char* name;
  std::vector<Attribute> attributes;
};

struct CustomCall {
  const char* target;
  std::vector<const char*> operands;
  std::vector<AttributeGroup> groups;
};

struct Contract {
  CustomCall plan;
  CustomCall gather;
  CustomCall exchange;
  CustomCall indexed_exchange;
  CustomCall gpu_indexed_exchange;
  CustomCall stage;
  CustomCall indexed_stage;
  CustomCall staged_exchange;
  CustomCall indexed_staged_exchange;
  CustomCall plan_exchange;
  CustomCall loopback;
  CustomCall loopback_plan;
  CustomCall after;
  CustomCall detached_after;
  CustomCall empty;

  std::vector<const CustomCall*> calls() const {
    return {&plan,     &gather,        &exchange,        &indexed_exchange,        &gpu_indexed_exchange,
            &stage,    &indexed_stage, &staged_exchange, &indexed_staged_exchange, &plan_exchange,
            &loopback, &loopback_plan, &after,           &detached_after,          &empty};
  }
};

const Contract& GetContract();

// Reads the attributes that `call` declares, and ignores all others.
ffi::ErrorOr<CallAttributes> DecodeAttributes(const CustomCall& call, const ffi::Dictionary& attrs);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_CONTRACT_H_
