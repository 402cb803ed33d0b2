// Makes the traffic matrix from the send sizes of the devices, to be planned for.
#ifndef FASTJAX_EXCHANGE_COUNTS_H_
#define FASTJAX_EXCHANGE_COUNTS_H_

#include <cstdint>
#include <vector>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax {

// Fills `traffic`, rank by rank, from everybody's sizes, by position. `scratch` is reused.
Status SumCounts(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args,
                 std::vector<int64_t>* traffic, std::vector<int64_t>* scratch);

// Writes the stage table of a device, of a plan that fits int32, where `args` has room for it.
Status WriteTable(int32_t rank, const CountsArgs& args, planner::Planner* plan);

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_COUNTS_H_
