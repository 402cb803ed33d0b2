// What every scheduler implements, a subclass of Schedule, and what it registers: how it is made and priced, and what
// other code must know of it. A scheduler is one file in schedulers/, which defines its SchedulerInfo, and one line in
// schedulers.inc.
#ifndef FASTJAX_PLANNER_SCHEDULE_H_
#define FASTJAX_PLANNER_SCHEDULE_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "planner/matchings.h"
#include "planner/planner.h"
#include "planner/pricing.h"
#include "planner/topology.h"
#include "planner/transfer.h"

namespace fastjax::planner {

class Schedule {
 public:
  virtual ~Schedule() = default;

  // Entries of `traffic` are not negative. Other methods are given the same matrix, which may be in another place by
  // then. `given`: matchings to take, if the scheduler uses any and they cover the traffic; null: none.
  virtual void Plan(const int64_t* traffic, const MatchingList* given) = 0;
  virtual int32_t num_stages() const = 0;
  // No block of the traffic has more rows.
  virtual int64_t block_bound() const = 0;
  // Transfers in which `device` is src or dst, or all of them for kEveryDevice; in one order, whichever is asked for.
  virtual void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) = 0;
  // On each device of the server; known without listing anything.
  virtual int64_t StagingRows(int32_t /*server*/) const { return 0; }
  virtual Matched matched() const { return {}; }
  // Returns the predicted time of the exchange, by the cost model, without planning time.
  virtual Picoseconds PredictedTime(const int64_t* traffic) = 0;
  // For one that chooses between others; `self` otherwise.
  virtual Scheduler chosen(Scheduler self) const { return self; }
  // What looking at those that were not taken took, by the cost model.
  virtual Picoseconds ChoosingTime() const { return 0; }
  virtual const std::vector<Choice>* choices() const { return nullptr; }
};

// In a round a device, or server, sends to one other and receives from one at most. Visits the senders in order: all of
// `count`, or those that concern `own`: itself, and the one that sends to it, `to_own`, if any.
template <typename Visit>
void ForEachSender(int32_t count, int32_t own, int32_t to_own, Visit visit) {
  if (own == kEveryDevice) {
    for (int32_t sender = 0; sender < count; ++sender) visit(sender);
    return;
  }
  if (to_own >= 0 && to_own < own) visit(to_own);
  visit(own);
  if (to_own > own) visit(to_own);
}

// Rows that stay inside a server, straight to their target.
void AppendLocal(const Topology& topology, const int64_t* traffic, int32_t device, TransferBuffer* out);

// Every block r -> (r + shift) % devices that leaves its server, whole, ordered by sender.
void AppendShift(const Topology& topology, const int64_t* traffic, int32_t shift, int32_t stage, int32_t device,
                 TransferBuffer* out);

// Every block to the device `server_shift` servers and `local_shift` places on, whole, ordered by sender. Devices of
// one server never send to the same one in the same round, as they do with AppendShift. Blocks that stay inside a
// server are left out.
void AppendRound(const Topology& topology, const int64_t* traffic, int32_t server_shift, int32_t local_shift,
                 int32_t device, TransferBuffer* out);

// Which NICs must work for a plan to be executed.
enum class NicNeed {
  kEachDevice,  // every device's own
  kAnyOfServer  // one of each server: rows go round those that have failed
};

// What becomes of a scheduler where a plan is chosen.
enum class Choosing {
  kConsidered,  // "auto" compares its price with others'
  kByName,      // it is taken only when it is asked for by name
  kChooses      // its plans are those of another, which Planner::chosen names
};

struct SchedulerTraits {
  std::string_view name;         // what `scheduler=` takes
  std::string_view description;  // what its plans do: a sentence without its first letter's case and its full stop
  int32_t order;                 // lists for users are sorted by it; two of the same value, by number
  bool stages_rows;              // whether rows may rest on devices that are neither their origin nor their target
  NicNeed nics;
  Choosing choosing;
};

// What one device's planning takes one core, about, in picoseconds; docs/design/cost_model.md.
struct PlanningCost {
  int64_t fixed = 0;
  int64_t block = 0;  // each pair of devices
  int64_t sent = 0;   // each pair of one server's devices with others
  int64_t pair = 0;   // each pair of servers

  Picoseconds Of(const Topology& topology) const {
    const Wide n = topology.servers;
    const Wide m = topology.devices_per_server;
    return fixed + (n * m) * (n * m) * block + (n - 1) * m * m * sent + n * n * pair;
  }
};

struct SchedulerInfo {
  SchedulerTraits traits;
  std::unique_ptr<Schedule> (*make)(const Topology& topology, int64_t row_bytes);
  // Entries that the table of any device takes at most; docs/design/stage_tables.md.
  int64_t (*max_entries)(const Topology& topology);
  // None for one that chooses: its plans take what those of the chosen one take.
  PlanningCost planning;
  // From the traffic to the price. Planning does most of that, too, but it need not know the price. None likewise.
  PlanningCost pricing;
};

const SchedulerInfo& GetSchedulerInfo(Scheduler scheduler);

#define FASTJAX_SCHEDULER(Name) extern const SchedulerInfo k##Name##Scheduler;
#include "planner/schedulers.inc"
#undef FASTJAX_SCHEDULER

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SCHEDULE_H_
