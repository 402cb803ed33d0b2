// One exchange of one call site: buffers with guards around them, and what must be in them in the end.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_EXCHANGE_RIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_EXCHANGE_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "kernels/copy.h"
#include "planner/planner.h"
#include "support/layout.h"
#include "support/outcomes.h"
#include "support/traffic.h"

namespace fastjax::test {

// Memory between guards, at an address that suits no type.
class Buffer {
 public:
  Buffer(int64_t bytes, std::mt19937_64* random);
  std::byte* data() { return memory_.data() + kGuard; }
  const std::byte* data() const { return memory_.data() + kGuard; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()) - 2 * kGuard; }
  bool operator==(const Buffer& other) const;
  bool SameGuards(const Buffer& other) const;

 private:
  static constexpr int64_t kGuard = 67;
  std::vector<std::byte> memory_;
};

inline ExchangeOptions Way(bool reverse, bool transposed_table) {
  ExchangeOptions options;
  options.reverse = reverse;
  options.transposed_table = transposed_table;
  return options;
}

struct RigOptions {
  planner::Topology topology;
  planner::Scheduler scheduler = planner::Scheduler::kFast;
  int32_t per_peer = 1;
  int64_t row_bytes = 8;
  kernels::ElementKind element = kernels::ElementKind::kF32;
  ExchangeOptions exchange;
  bool overlap = false;    // of slices of the operand
  bool on_device = false;  // indices are in the devices' memory
  // Of exchanges in reverse that are indexed: the type of sums, and whether rows have factors.
  kernels::ElementKind sum = kernels::ElementKind::kOpaque;
  bool factors = false;
};

class Rig {
 public:
  // `traffic` is what is planned; with a transposed table its transpose is exchanged.
  Rig(std::shared_ptr<const CallSite> site, const RigOptions& options, const Matrix& traffic, std::mt19937_64* random);

  // The table of a partition, to be damaged or made by others.
  std::vector<int32_t>& table(int32_t partition) { return devices_[partition].table; }

  void Start(Exchange* exchange, int64_t run_id, int32_t partition, Completion done);
  // Starts those of one process, or all, in order.
  void StartAll(Exchange* exchange, int64_t run_id, const Outcomes& outcomes, int32_t process = -1);
  // Starts every partition, in any order, on this thread or each on its own, and waits.
  Outcomes Run(Exchange* exchange, int64_t run_id, bool threads);
  // Waits for all, where nothing is to fail: what is wrong is said of the caller's line.
  void CheckEnd(const Outcomes& outcomes, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // Run, where nothing is to fail.
  void CheckRun(Exchange* exchange, int64_t run_id, bool threads, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
    CheckEnd(Run(exchange, run_id, threads), file, line);
  }

  // Rows were summed in some group.
  bool sums() const { return sums_; }
  bool IsRight() const;
  bool IsUntouched() const;
  bool GuardsAreWhole() const;
  // As it was before the exchange.
  void Reset();

 private:
  struct Device {
    Metadata metadata;
    ExchangeArgs args;
    std::vector<int32_t> table;
    std::vector<int32_t> indices;
    std::vector<int32_t> entries;  // by index
    std::vector<int32_t> starts;
    Buffer factors;
    Buffer source;
    Buffer source_before;
    Buffer destination;
    Buffer destination_before;
    Buffer expected;
  };

  void Expect(int32_t group, const Layout& layout);
  // Of a row of the destination.
  int64_t ResultBytes() const;

  std::shared_ptr<const CallSite> site_;
  RigOptions options_;
  std::mt19937_64 random_;
  std::vector<Device> devices_;  // by partition
  bool sums_ = false;
};

// Rows that indices name, in reverse: of every type, summed in it or in a wider one, with factors and without. None has
// slices that overlap.
std::vector<RigOptions> IndexedSums();

// Anything that the processes of a job may exchange, on sixteen devices at most. `exchange.plan` is that of
// PlansItself, if they plan it.
RigOptions DrawOptions(std::mt19937_64* random);

// Says that an exchange plans itself, where each process makes the function that does.
PlanFunction PlansItself();

// The topology and the scheduler's name, for Context.
std::string Name(const RigOptions& options);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_EXCHANGE_RIG_H_
