// What a scheduler registers: how it is made and priced, and what other code must know of it. A scheduler is one file
// in schedulers/, which defines its SchedulerInfo, and one line in schedulers.inc.
#ifndef FASTJAX_PLANNER_SCHEDULER_INFO_H_
#define FASTJAX_PLANNER_SCHEDULER_INFO_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "planner/planner.h"
#include "planner/rate.h"
#include "planner/schedule.h"
#include "planner/topology.h"

namespace fastjax::planner {

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

#endif  // FASTJAX_PLANNER_SCHEDULER_INFO_H_
