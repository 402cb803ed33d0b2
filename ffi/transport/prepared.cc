#include "transport/prepared.h"

namespace fastjax::transport {

Status Prepared::Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                      const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* alike) {
  *alike = true;
  if (Status status = traffic_.Load(site, group, args, options.reverse); !status.ok()) return status;
  if (options.plan) return planned_.Make(options, site.group_size, traffic_.sent(), ranks, &tables_);
  *alike = false;
  tables_.assign(static_cast<size_t>(site.group_size), nullptr);
  for (const int32_t rank : ranks) tables_[static_cast<size_t>(rank)] = args[site.position_at[rank]].table;
  return traffic_.CheckTables(site, group, args, options.transposed_table);
}

}  // namespace fastjax::transport
