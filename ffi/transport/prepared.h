// What is to be found out about an exchange before rows move, the same for every transport: its traffic, checked, and
// its stage tables.
#ifndef FASTJAX_TRANSPORT_PREPARED_H_
#define FASTJAX_TRANSPORT_PREPARED_H_

#include <cstdint>
#include <vector>

#include "transport/meter.h"
#include "transport/planned_tables.h"
#include "transport/traffic.h"
#include "transport/transport.h"

namespace fastjax::transport {

// Reused from exchange to exchange without allocating.
class Prepared {
 public:
  // `args` by position. Plans for `ranks`, where the exchange plans itself; otherwise their tables are in `args`.
  // `alike` says, of a mistake, whether every process finds the same.
  Status Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
              const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* alike, Launch* launch);

  GroupTraffic& traffic() { return traffic_; }
  // What figures are made of, once it has been loaded.
  Seen seen() const;
  // By rank; null for those of other processes.
  const std::vector<const int32_t*>& tables() const { return tables_; }

 private:
  GroupTraffic traffic_;
  PlannedTables planned_;
  std::vector<const int32_t*> tables_;
  int64_t row_bytes_ = 0;
};

}  // namespace fastjax::transport

#endif  // FASTJAX_TRANSPORT_PREPARED_H_
