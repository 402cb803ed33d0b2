#include "transport/planned_tables.h"

namespace fastjax::transport {

Status PlannedTables::Make(const ExchangeOptions& options, int32_t devices, const int64_t* traffic,
                           const std::vector<int32_t>& ranks, std::vector<const int32_t*>* tables, Launch* launch) {
  const auto words = static_cast<size_t>(options.table_words);
  memory_.resize(ranks.size() * words);
  local_.clear();
  tables->assign(static_cast<size_t>(devices), nullptr);
  for (size_t i = 0; i < ranks.size(); ++i) {
    local_.push_back({ranks[i], &memory_[i * words]});
    (*tables)[static_cast<size_t>(ranks[i])] = &memory_[i * words];
  }
  return PlanMetered(options.plan, traffic, local_, launch);
}

}  // namespace fastjax::transport
