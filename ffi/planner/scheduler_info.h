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
  bool single_stage;             // whether all that leaves its server is posted at once, in one stage
  NicNeed nics;
  Choosing choosing;
};

struct SchedulerInfo {
  SchedulerTraits traits;
  std::unique_ptr<Schedule> (*make)(const Topology& topology, int64_t row_bytes);
  // Entries that the table of any device takes at most; docs/design/stage_tables.md.
  int64_t (*max_entries)(const Topology& topology);
  // What planning for one device takes, about; docs/design/cost_model.md. Null for one that chooses: its plans take
  // what those of the chosen one take.
  Picoseconds (*planning_time)(const Topology& topology);
  // From the traffic to the price. Planning does most of that, too, but it need not know the price. Null likewise.
  Picoseconds (*pricing_time)(const Topology& topology);
};

const SchedulerInfo& GetSchedulerInfo(Scheduler scheduler);

#define FASTJAX_SCHEDULER(Name) extern const SchedulerInfo k##Name##Scheduler;
#include "planner/schedulers.inc"
#undef FASTJAX_SCHEDULER

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SCHEDULER_INFO_H_
