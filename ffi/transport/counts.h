// Traffic from the sizes that devices send, for planning on its own.
#ifndef FASTJAX_TRANSPORT_COUNTS_H_
#define FASTJAX_TRANSPORT_COUNTS_H_

#include <cstdint>
#include <vector>

#include "transport/group.h"
#include "transport/status.h"
#include "transport/transport.h"

namespace fastjax::transport {

// Fills `traffic`, rank by rank, from everybody's sizes, by position. `scratch` is reused.
Status SumCounts(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args,
                 std::vector<int64_t>* traffic, std::vector<int64_t>* scratch);

// Has everybody's tables taken, once they have been written. Devices of other processes have no takers here.
Status HandOverTables(const std::vector<CountsArgs>& args);

}  // namespace fastjax::transport

#endif  // FASTJAX_TRANSPORT_COUNTS_H_
