#include "handlers/planning.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "handlers/handlers.h"
#include "planner/planner.h"
#include "planner/table.h"

namespace fastjax::handlers {
namespace {

using transport::Status;

std::atomic<int64_t> plans_made{0};

// One planner for a call site: launches and groups that plan at once take turns, for the microseconds it takes.
class SitePlanner {
 public:
  SitePlanner(std::shared_ptr<const transport::CallSite> site, planner::Planner planner)
      : site_(std::move(site)), planner_(std::move(planner)) {}

  Status Plan(const int64_t* traffic, const std::vector<transport::LocalTable>& tables) {
    const std::lock_guard<std::mutex> lock(mutex_);
    planner_.Plan(traffic);
    plans_made.fetch_add(1, std::memory_order_relaxed);
    for (const auto& table : tables) {
      if (!planner::WriteTable(&planner_, table.rank, table.words)) {
        return Status::Invalid(site_->Prefix() + "a device sends 2^31 rows or more to another; split the exchange.");
      }
    }
    return Status::Ok();
  }

 private:
  const std::shared_ptr<const transport::CallSite> site_;
  std::mutex mutex_;
  planner::Planner planner_;
};

}  // namespace

ffi::ErrorOr<Planning> DecodePlanning(const ffi::Dictionary& attrs,
                                      const std::shared_ptr<const transport::CallSite>& site) {
  const auto topology_words = attrs.get<ffi::Span<const int64_t>>("topology");
  const auto scheduler = attrs.get<int64_t>("scheduler");
  const auto row_bytes = attrs.get<int64_t>("row_bytes");
  if (!topology_words.has_value() || topology_words->size() != 6 || !scheduler.has_value() || !row_bytes.has_value()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a plan's attributes are incomplete"));
  }
  const auto& words = *topology_words;
  const planner::Topology topology{
      static_cast<int32_t>(words[0]), static_cast<int32_t>(words[1]), words[2], words[3], words[4], words[5]};
  const auto count = static_cast<int64_t>(planner::SchedulerNames().size());
  if (topology.devices() != site->group_size || *scheduler < 0 || *scheduler >= count) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: the topology does not fit the group"));
  }
  const auto kind = static_cast<planner::Scheduler>(*scheduler);
  auto planner = std::make_shared<SitePlanner>(site, planner::Planner(topology, kind, *row_bytes));
  return Planning{[planner](const int64_t* traffic, const std::vector<transport::LocalTable>& tables) {
                    return planner->Plan(traffic, tables);
                  },
                  planner::TableWords(topology, kind)};
}

int64_t PlansMade() { return plans_made.load(std::memory_order_relaxed); }

}  // namespace fastjax::handlers
