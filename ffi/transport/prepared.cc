#include "transport/prepared.h"

#include <algorithm>

namespace fastjax::transport {

Status Prepared::Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                      const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* alike, Launch* launch) {
  *alike = true;
  row_bytes_ = args[site.position_at[ranks.front()]].row_bytes;
  if (Status status = traffic_.Load(site, group, args, options.reverse); !status.ok()) return status;
  if (options.check_overlaps && !options.reverse) {
    if (Status status = traffic_.CheckLandings(group); !status.ok()) return status;
  }
  if (options.plan) return planned_.Make(options, site.group_size, traffic_.sent(), ranks, &tables_, launch);
  *alike = false;
  tables_.assign(static_cast<size_t>(site.group_size), nullptr);
  for (const int32_t rank : ranks) tables_[static_cast<size_t>(rank)] = args[site.position_at[rank]].table;
  return traffic_.CheckTables(site, group, args, options.transposed_table);
}

Seen Prepared::seen() const {
  const auto own = std::find_if(tables_.begin(), tables_.end(), [](const int32_t* table) { return table != nullptr; });
  return {traffic_.sent(), row_bytes_, own == tables_.end() ? nullptr : *own};
}

}  // namespace fastjax::transport
