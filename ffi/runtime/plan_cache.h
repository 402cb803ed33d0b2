// Plans that are kept in case their traffic comes again.
#ifndef FASTJAX_RUNTIME_PLAN_CACHE_H_
#define FASTJAX_RUNTIME_PLAN_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange/backend.h"
#include "planner/planner.h"
#include "planner/topology.h"

namespace fastjax {

// What call sites of the same settings plan with: launches, groups and sites that plan at once wait for each other, for
// the microseconds it takes, and traffic that another site has planned is not planned again. Thread-safe.
class PlanCache {
 public:
  // The process's cache for these settings; it lives as long as the call sites that use it. `words` are those that
  // `topology` was read from.
  static std::shared_ptr<PlanCache> Of(std::vector<int64_t> words, const planner::Topology& topology,
                                       planner::Scheduler scheduler, int64_t row_bytes);

  PlanCache(const planner::Topology& topology, planner::Scheduler scheduler, int64_t row_bytes);

  // Both return why there is nothing to write or take, or an empty string. `anew`: as in PlanFunction.
  const char* Write(const int64_t* traffic, const std::vector<LocalTable>& tables, bool* anew);
  const char* Slice(const int64_t* traffic, const std::vector<int32_t>& ranks, const TakeSlice& take, bool* anew);

 private:
  // Of the plans, the most recently used comes first. Requires mutex_.
  planner::Planner& Planned(const int64_t* traffic, bool* anew);

  const planner::Topology topology_;
  const planner::Scheduler scheduler_;
  const int64_t row_bytes_;
  std::mutex mutex_;
  std::list<planner::Planner> planners_;
};

// How many plans this process has made for traced programs.
int64_t PlansMade();

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_PLAN_CACHE_H_
