// The custom calls: operands and attributes of each, declared once. fastjax/traced/contract.py emits calls by these
// declarations. Compiled and exported programs contain all of it, so it is a format.
#ifndef FASTJAX_HANDLERS_CONTRACT_H_
#define FASTJAX_HANDLERS_CONTRACT_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "exchange/call_site.h"
#include "handlers/operands.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

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
