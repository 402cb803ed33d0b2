// Makes the traffic matrix from the send sizes of the devices, for the plan call, and gathers these sizes.
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

// Writes everybody's sizes, by position, where devices want them. `scratch` is reused.
void GatherCounts(const std::vector<CountsArgs>& args, std::vector<int64_t>* scratch);

// Fills `traffic`, rank by rank, with the choices of each device by the devices that have their experts, from all that
// GatherCounts has left in its scratch. The call site has experts, which divide over its devices.
void SumAtHome(const CallSite& site, const std::vector<int64_t>& gathered, std::vector<int64_t>* traffic);

// Has everybody's tables taken, once they have been written. Devices of other processes have no takers here.
Status HandOverTables(const std::vector<CountsArgs>& args);

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_COUNTS_H_
