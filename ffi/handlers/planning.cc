#include "handlers/planning.h"

#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"
#include "runtime/plan_cache.h"

namespace fastjax::handlers {
ffi::ErrorOr<planner::Topology> DecodeTopology(const CallAttributes& attrs) {
  planner::Topology topology;
  const std::string wrong =
      planner::ReadTopology(attrs.topology.begin(), static_cast<int64_t>(attrs.topology.size()), &topology);
  if (!wrong.empty()) return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: " + wrong));
  return topology;
}

ffi::ErrorOr<Planning> DecodePlanning(const CallAttributes& attrs, const std::shared_ptr<const CallSite>& site) {
  const auto topology = DecodeTopology(attrs);
  if (!topology.has_value()) return ffi::Unexpected(topology.error());
  if (topology->devices() != site->group_size || attrs.scheduler < 0 || attrs.scheduler >= planner::NumSchedulers() ||
      attrs.row_bytes < 1) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: the topology does not fit the group"));
  }
  const auto kind = static_cast<planner::Scheduler>(attrs.scheduler);
  auto cache = PlanCache::Of({attrs.topology.begin(), attrs.topology.end()}, *topology, kind, attrs.row_bytes);
  const auto told = [site](const char* why) {
    return *why == '\0' ? Status::Ok() : Status::Invalid(site->Prefix() + why);
  };
  Planning planning;
  planning.tables = [cache, told](const int64_t* traffic, const std::vector<LocalTable>& tables, bool* made) {
    return told(cache->Write(traffic, tables, made));
  };
  planning.slices = [cache, told](const int64_t* traffic, const TakeSlices& take, bool* made) {
    return told(cache->Slice(traffic, take, made));
  };
  planning.table_words = planner::TableWords(*topology, kind);
  return planning;
}

}  // namespace fastjax::handlers
