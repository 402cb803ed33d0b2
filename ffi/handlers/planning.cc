#include "handlers/planning.h"

#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"
#include "runtime/plan_cache.h"

namespace fastjax::handlers {
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
  auto cache = PlanCache::Of(words, topology, kind, *row_bytes);
  const auto told = [site](const char* why) {
    return *why == '\0' ? Status::Ok() : Status::Invalid(site->Prefix() + why);
  };
  Planning planning;
  planning.tables = [cache, told](const int64_t* traffic, const std::vector<LocalTable>& tables, bool* anew) {
    return told(cache->Write(traffic, tables, anew));
  };
  planning.slices = [cache, told](const int64_t* traffic, const std::vector<int32_t>& ranks, const TakeSlice& take,
                                  bool* anew) { return told(cache->Slice(traffic, ranks, take, anew)); };
  planning.table_words = planner::TableWords(topology, kind);
  return planning;
}

}  // namespace fastjax::handlers
