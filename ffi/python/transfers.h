// Transfers as packed records: the fields of fastjax.schedule.transfers.TRANSFER_DTYPE.
#ifndef FASTJAX_PYTHON_TRANSFERS_H_
#define FASTJAX_PYTHON_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/transfer.h"

namespace fastjax::python {

std::vector<uint8_t> Pack(const std::vector<planner::Transfer>& transfers);

// `bytes` of whole records. Rows lie in place.
std::vector<planner::Transfer> Unpack(const uint8_t* records, size_t bytes);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_TRANSFERS_H_
