// Memory of the stage tables of an exchange that plans itself.
#ifndef FASTJAX_TRANSPORT_PLANNED_TABLES_H_
#define FASTJAX_TRANSPORT_PLANNED_TABLES_H_

#include <cstdint>
#include <vector>

#include "transport/meter.h"
#include "transport/status.h"
#include "transport/transport.h"

namespace fastjax::transport {

class PlannedTables {
 public:
  // Plans `traffic` and writes the tables of `ranks`; tables[rank] points to each, and is null for others.
  Status Make(const ExchangeOptions& options, int32_t devices, const int64_t* traffic,
              const std::vector<int32_t>& ranks, std::vector<const int32_t*>* tables, Launch* launch);

 private:
  std::vector<int32_t> memory_;
  std::vector<LocalTable> local_;
};

}  // namespace fastjax::transport

#endif  // FASTJAX_TRANSPORT_PLANNED_TABLES_H_
