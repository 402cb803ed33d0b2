#include "handlers/planning.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "handlers/handlers.h"
#include "planner/planner.h"
#include "planner/table.h"

namespace fastjax::handlers {
namespace {

std::atomic<int64_t> plans_made{0};

// Plans that are kept in case their traffic comes again. Of many devices a plan is large.
size_t MaxKept(const planner::Topology& topology) { return topology.devices() <= 512 ? 4 : 1; }

// What call sites of the same settings plan with: launches, groups and sites that plan at once take turns, for the
// microseconds it takes, and traffic that another site has planned is not planned again.
class PlannerPool {
 public:
  PlannerPool(const planner::Topology& topology, planner::Scheduler scheduler, int64_t row_bytes)
      : topology_(topology), scheduler_(scheduler), row_bytes_(row_bytes) {
    planners_.emplace_back(topology, scheduler, row_bytes);
  }

  // Both return why there is nothing to write or take, or an empty string.
  const char* Write(const int64_t* traffic, const std::vector<LocalTable>& tables, bool* anew) {
    const std::lock_guard<std::mutex> lock(mutex_);
    planner::Planner& planner = Planned(traffic, anew);
    for (const LocalTable& table : tables) {
      if (!planner::WriteTable(&planner, table.rank, table.words)) return Refusal(planner);
    }
    return "";
  }
  const char* Slice(const int64_t* traffic, const std::vector<int32_t>& ranks, const TakeSlice& take, bool* anew) {
    const std::lock_guard<std::mutex> lock(mutex_);
    planner::Planner& planner = Planned(traffic, anew);
    planner::Slicer slicer(&planner);
    if (!slicer.possible()) return Refusal(planner);
    for (const int32_t rank : ranks) take(slicer.Of(rank));
    return "";
  }

 private:
  static const char* Refusal(const planner::Planner& planner) {
    return planner.blocks_fit_int32() ? "a device stages 2^31 rows or more for others; split the exchange."
                                      : "a device sends 2^31 rows or more to another; split the exchange.";
  }

  // The most recently used comes first.
  planner::Planner& Planned(const int64_t* traffic, bool* anew) {
    const planner::Fingerprint fingerprint = planners_.front().FingerprintOf(traffic);
    auto found = std::find_if(planners_.begin(), planners_.end(),
                              [&](const planner::Planner& planner) { return planner.planned(fingerprint); });
    *anew = found == planners_.end();
    if (*anew) {
      plans_made.fetch_add(1, std::memory_order_relaxed);
      if (planners_.front().traffic() != nullptr && planners_.size() < MaxKept(topology_)) {
        planners_.emplace_front(topology_, scheduler_, row_bytes_);
      }
      found = planners_.front().traffic() == nullptr ? planners_.begin() : std::prev(planners_.end());
    }
    planners_.splice(planners_.begin(), planners_, found);
    found->Plan(traffic, fingerprint);
    return *found;
  }

  const planner::Topology topology_;
  const planner::Scheduler scheduler_;
  const int64_t row_bytes_;
  std::mutex mutex_;
  std::list<planner::Planner> planners_;
};

// Pools live as long as the call sites that use them.
std::shared_ptr<PlannerPool> PoolOf(const std::vector<int64_t>& words, const planner::Topology& topology,
                                    planner::Scheduler scheduler, int64_t row_bytes) {
  static auto& mutex = *new std::mutex;
  static auto& pools = *new std::map<std::vector<int64_t>, std::weak_ptr<PlannerPool>>;
  std::vector<int64_t> key = words;
  key.push_back(static_cast<int64_t>(scheduler));
  key.push_back(row_bytes);
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto it = pools.begin(); it != pools.end();) it = it->second.expired() ? pools.erase(it) : std::next(it);
  std::weak_ptr<PlannerPool>& kept = pools[key];
  std::shared_ptr<PlannerPool> pool = kept.lock();
  if (pool == nullptr) {
    pool = std::make_shared<PlannerPool>(topology, scheduler, row_bytes);
    kept = pool;
  }
  return pool;
}

}  // namespace

ffi::ErrorOr<Planning> DecodePlanning(const ffi::Dictionary& attrs, const std::shared_ptr<const CallSite>& site) {
  const auto topology_words = attrs.get<ffi::Span<const int64_t>>("topology");
  const auto scheduler = attrs.get<int64_t>("scheduler");
  const auto row_bytes = attrs.get<int64_t>("row_bytes");
  if (!topology_words.has_value() || !scheduler.has_value() || !row_bytes.has_value()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a plan's attributes are incomplete"));
  }
  const std::vector<int64_t> words(topology_words->begin(), topology_words->end());
  planner::Topology topology;
  const std::string wrong = planner::ReadTopology(words.data(), static_cast<int64_t>(words.size()), &topology);
  if (!wrong.empty()) return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: " + wrong));
  const auto count = static_cast<int64_t>(planner::SchedulerNames().size());
  if (topology.devices() != site->group_size || *scheduler < 0 || *scheduler >= count || *row_bytes < 1) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: the topology does not fit the group"));
  }
  const auto kind = static_cast<planner::Scheduler>(*scheduler);
  auto pool = PoolOf(words, topology, kind, *row_bytes);
  const auto told = [site](const char* why) {
    return *why == '\0' ? Status::Ok() : Status::Invalid(site->Prefix() + why);
  };
  Planning planning;
  planning.tables = [pool, told](const int64_t* traffic, const std::vector<LocalTable>& tables, bool* anew) {
    return told(pool->Write(traffic, tables, anew));
  };
  planning.slices = [pool, told](const int64_t* traffic, const std::vector<int32_t>& ranks, const TakeSlice& take,
                                 bool* anew) { return told(pool->Slice(traffic, ranks, take, anew)); };
  planning.table_words = planner::TableWords(topology, kind);
  return planning;
}

int64_t PlansMade() { return plans_made.load(std::memory_order_relaxed); }

}  // namespace fastjax::handlers
