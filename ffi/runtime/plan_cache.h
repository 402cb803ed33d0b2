// Declares PlanCache, which keeps plans in case their traffic comes again.
#ifndef FASTJAX_RUNTIME_PLAN_CACHE_H_
#define FASTJAX_RUNTIME_PLAN_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange/operation.h"
#include "planner/planner.h"
#include "planner/topology.h"

namespace fastjax {

// The planner and the plans that call sites of the same settings share. Launches, groups and sites that plan at the
// same time wait for each other, which takes microseconds. Traffic that one of them has planned is not planned again.
// Thread-safe.
class PlanCache {
 public:
  // Returns this process's cache for these settings, which lives as long as the call sites that use it. `words` are
  // those that `topology` was read from.
  static std::shared_ptr<PlanCache> Of(std::vector<int64_t> words, const planner::Topology& topology,
                                       planner::Scheduler scheduler, int64_t row_bytes);

  PlanCache(const planner::Topology& topology, planner::Scheduler scheduler, int64_t row_bytes);

  // Does what a PlanFunction does, and returns an error, or an empty string.
  const char* Plan(const int64_t* traffic, const TakePlan& take, bool* made);

 private:
  // Returns the planner that has the plan of this traffic, as the first of the list. Requires mutex_.
  planner::Planner& Planned(const int64_t* traffic, bool* made);

  const planner::Topology topology_;
  const planner::Scheduler scheduler_;
  const int64_t row_bytes_;
  std::mutex mutex_;
  std::list<planner::Planner> planners_;
};

// Returns how many plans this process has made for traced programs.
int64_t PlansMade();

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_PLAN_CACHE_H_
