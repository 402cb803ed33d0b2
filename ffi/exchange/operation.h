// Declares what backends have in common: the operations that they open, one for each call site, with what devices bring
// to them. Call sites are opened when a program is compiled and used on every launch. Nothing here knows of XLA.
#ifndef FASTJAX_EXCHANGE_OPERATION_H_
#define FASTJAX_EXCHANGE_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/int_view.h"
#include "exchange/status.h"
#include "kernels/copy.h"
#include "kernels/sum.h"
#include "planner/table.h"

namespace fastjax {

// Plans `traffic` (rank by rank, rows) and calls `take` with the plan while that is kept from others who plan: what is
// not copied then is gone. `made`: whether it had to be planned, or a plan of it had been kept.
using TakePlan = std::function<void(planner::Planner* plan)>;
using PlanFunction = std::function<Status(const int64_t* traffic, const TakePlan& take, bool* made)>;

struct CountsArgs {
  IntView send_sizes;  // k updates for each peer, peers in order of position
  int32_t* table_words = nullptr;
  // Takes the table, which has been written, to where it is wanted, on whatever thread; null where that is there. What
  // fails here fails for all devices.
  std::function<Status()> take_table = nullptr;
  // Room for the sizes of all devices, by position; null where they are not wanted.
  int32_t* gathered = nullptr;
};

struct ExchangeOptions {
  // Rows travel from output space to operand space, along the same offsets: what gradients need. Rows that land on
  // each other are summed.
  bool reverse = false;
  // The table is that of the transposed traffic.
  bool transposed_table = false;
  // Output slices that overlap are a mistake. Costs a sort of all slices, hence not by default.
  bool check_overlaps = false;
  // Rows out of range are dropped, which is a mistake by default. The exchange plans itself: only what is left moves.
  bool drop = false;
  // Rows of operand space are named by indices: entry e of a device's slices is the row `indices[e]` of its array. In
  // reverse, rows with one index are summed, each times its factor if it has one, perhaps in a wider type.
  bool indexed = false;
  // Plans the exchange itself, where its arguments bring no table: every device's counts are at hand, so planning
  // on its own would only make the devices meet twice.
  PlanFunction plan;

  // Whether rows travel the other way than they were planned to.
  bool backwards() const { return transposed_table != reverse; }
};

struct ExchangeArgs {
  const std::byte* source = nullptr;
  int64_t source_rows = 0;
  std::byte* destination = nullptr;
  int64_t destination_rows = 0;
  int64_t row_bytes = 0;
  kernels::ElementKind element = kernels::ElementKind::kOpaque;  // of the source
  // Of what is summed: the type of the destination, where it is another than that of the source.
  kernels::ElementKind sum = kernels::ElementKind::kOpaque;
  // And what each row of the source is multiplied by before, of the type of the destination; null for 1. Of a device of
  // this process; all have factors or none has.
  const std::byte* factors = nullptr;
  // Where the exchange is indexed, by this device if it is of this process: as many as the operand space has rows.
  const int32_t* indices = nullptr;
  int64_t indexed_rows = 0;  // rows of the array that they index
  // On GPUs, in their place: lists in the device's memory, which the host does not read. Forward there is the row of
  // each entry in `device_indices`. In reverse there are the entries by the row of the result that they are of, as many
  // as operand space has rows, those of row r from number device_starts[r] to before number device_starts[r + 1].
  const int32_t* device_indices = nullptr;
  const int32_t* device_starts = nullptr;
  IntView input_offsets;
  IntView send_sizes;
  IntView output_offsets;
  IntView recv_sizes;
  const int32_t* table = nullptr;
  int64_t table_words = 0;
  uint64_t plan_hash = 0;  // of the table, where another process has it
  // What a device of this process brings to a call besides buffers, such as a stream: of a type that the backend of the
  // call site knows.
  const void* context = nullptr;

  kernels::SumTypes sum_types() const { return {element, sum == kernels::ElementKind::kOpaque ? element : sum}; }
  int64_t factor_bytes() const {
    return factors == nullptr ? 0 : static_cast<int64_t>(kernels::ElementBytes(sum_types().sum));
  }
  // A row of the source, with its factor.
  kernels::Summand SummandAt(int64_t row) const {
    return {source + row * row_bytes, factors == nullptr ? nullptr : factors + row * factor_bytes()};
  }
  // Rows of the destination's array.
  int64_t result_rows() const { return indices == nullptr ? destination_rows : indexed_rows; }
};

// What the devices of a group do together at one call site. It may be dropped while devices wait: they are still told.
template <typename Args>
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void Start(int64_t run_id, int32_t partition, Args args, Completion done) = 0;
  // The device comes, but cannot take part: all devices of its group are told why, it among them.
  virtual void FailGroup(int64_t run_id, int32_t partition, const Status& why, Completion done) = 0;
};

// Brings every device's counts together and has them planned. Without a plan, counts may be any integers, and are only
// gathered.
using Counts = Operation<CountsArgs>;
// Moves rows as the stage tables say.
using Exchange = Operation<ExchangeArgs>;

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_OPERATION_H_
