// Declares Prepared: what is found out about an exchange before rows move, the same for every backend. It holds the
// checked traffic, and the plans of the devices that are here.
#ifndef FASTJAX_EXECUTION_PREPARED_H_
#define FASTJAX_EXECUTION_PREPARED_H_

#include <cstdint>
#include <vector>

#include "exchange/backend.h"
#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "runtime/meter.h"

namespace fastjax {

// Reused from exchange to exchange without allocating.
class Prepared {
 public:
  // `args` by position. Plans for `ranks`, where the exchange plans itself; otherwise their tables are in `args`.
  // `alike` says, of a mistake, whether every process finds the same.
  Status Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
              const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* alike, Launch* launch);

  GroupTraffic& traffic() { return traffic_; }
  const DevicePlans& plans() const { return plans_; }
  // What statistics are made of, once it has been loaded.
  Seen seen() const;

 private:
  Status Plan(const ExchangeOptions& options, const std::vector<int32_t>& ranks, Launch* launch);

  GroupTraffic traffic_;
  DevicePlans plans_;
  int64_t row_bytes_ = 0;
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_PREPARED_H_
