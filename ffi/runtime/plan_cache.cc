#include "runtime/plan_cache.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>

#include "runtime/process_state.h"

namespace fastjax {
namespace {

// Owns all caches of the process, by their settings: the words of the topology, the scheduler, bytes of a row.
struct PlanCaches {
  std::mutex mutex;
  std::map<std::vector<int64_t>, std::weak_ptr<PlanCache>> caches;
  std::atomic<int64_t> plans_made{0};
};

// A plan of many devices is large, so few are kept.
size_t MaxKept(const planner::Topology& topology) { return topology.devices() <= 512 ? 4 : 1; }

}  // namespace

PlanCache::PlanCache(const planner::Topology& topology, planner::Scheduler scheduler, int64_t row_bytes)
    : topology_(topology), scheduler_(scheduler), row_bytes_(row_bytes) {
  planners_.emplace_back(topology, scheduler, row_bytes);
}

std::shared_ptr<PlanCache> PlanCache::Of(std::vector<int64_t> words, const planner::Topology& topology,
                                         planner::Scheduler scheduler, int64_t row_bytes) {
  std::vector<int64_t>& key = words;
  key.push_back(static_cast<int64_t>(scheduler));
  key.push_back(row_bytes);
  auto& state = ProcessState<PlanCaches>();
  const std::lock_guard<std::mutex> lock(state.mutex);
  auto& caches = state.caches;
  for (auto it = caches.begin(); it != caches.end();) it = it->second.expired() ? caches.erase(it) : std::next(it);
  std::weak_ptr<PlanCache>& kept = caches[key];
  std::shared_ptr<PlanCache> cache = kept.lock();
  if (cache == nullptr) {
    cache = std::make_shared<PlanCache>(topology, scheduler, row_bytes);
    kept = cache;
  }
  return cache;
}

const char* PlanCache::Plan(const int64_t* traffic, const TakePlan& take, bool* made) {
  const std::lock_guard<std::mutex> lock(mutex_);
  planner::Planner& planner = Planned(traffic, made);
  if (!planner.blocks_fit_int32()) return "a device sends 2^31 rows or more to another; split the exchange.";
  if (!planner.fits_int32()) return "a device stages 2^31 rows or more for others; split the exchange.";
  take(&planner);
  return "";
}

planner::Planner& PlanCache::Planned(const int64_t* traffic, bool* made) {
  const uint64_t hash = planners_.front().HashWith(traffic);
  auto found = std::find_if(planners_.begin(), planners_.end(),
                            [&](const planner::Planner& planner) { return planner.planned(hash); });
  *made = found == planners_.end();
  if (*made) {
    ProcessState<PlanCaches>().plans_made.fetch_add(1, std::memory_order_relaxed);
    if (planners_.front().traffic() != nullptr && planners_.size() < MaxKept(topology_)) {
      planners_.emplace_front(topology_, scheduler_, row_bytes_);
    }
    found = planners_.front().traffic() == nullptr ? planners_.begin() : std::prev(planners_.end());
  }
  planners_.splice(planners_.begin(), planners_, found);
  found->Plan(traffic, hash);
  return *found;
}

int64_t PlansMade() { return ProcessState<PlanCaches>().plans_made.load(std::memory_order_relaxed); }

}  // namespace fastjax
