#include "python/transfers.h"

#include <cstring>
#include <stdexcept>

namespace fastjax::python {
namespace {

using planner::Phase;
using planner::Transfer;

// Calls `field` with each field of a record, in order.
template <typename TransferType, typename Field>
void ForEachField(TransferType& transfer, Field field) {
  field(transfer.stage);
  field(transfer.src);
  field(transfer.dst);
  field(transfer.origin);
  field(transfer.target);
  field(transfer.first_row);
  field(transfer.rows);
}

constexpr size_t kRecord = sizeof(int8_t) + 5 * sizeof(int32_t) + 2 * sizeof(int64_t);

}  // namespace

std::vector<uint8_t> Pack(const std::vector<Transfer>& transfers) {
  std::vector<uint8_t> out(transfers.size() * kRecord);
  uint8_t* at = out.data();
  for (const Transfer& transfer : transfers) {
    *at++ = static_cast<uint8_t>(transfer.phase);
    ForEachField(transfer, [&](const auto& value) {
      std::memcpy(at, &value, sizeof(value));
      at += sizeof(value);
    });
  }
  return out;
}

std::vector<Transfer> Unpack(const uint8_t* records, size_t bytes) {
  if (bytes % kRecord != 0) throw std::invalid_argument("records are not whole");
  std::vector<Transfer> transfers(bytes / kRecord);
  for (Transfer& transfer : transfers) {
    transfer.phase = static_cast<Phase>(*records++);
    transfer.src_row = transfer.dst_row = Transfer::kInPlace;
    ForEachField(transfer, [&](auto& value) {
      std::memcpy(&value, records, sizeof(value));
      records += sizeof(value);
    });
  }
  return transfers;
}

}  // namespace fastjax::python
