// The transfers of a plan, as lists to be looked at.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_TRANSFERS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_TRANSFERS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "planner/transfer.h"

namespace fastjax::test {

inline std::vector<planner::Transfer> AllTransfers(planner::Planner* plan) {
  const planner::TransferRange all = plan->DeviceTransfers(planner::kEveryDevice);
  return {all.begin(), all.end()};
}

// Rows of `block`, a device and its target, that rest nowhere in staging.
inline planner::Transfer Rows(planner::Phase phase, int32_t stage, int32_t src, int32_t dst,
                              const std::pair<int32_t, int32_t>& block, int64_t first_row, int64_t rows) {
  constexpr int64_t kInPlace = planner::Transfer::kInPlace;
  return {phase, stage, src, dst, block.first, block.second, first_row, rows, kInPlace, kInPlace};
}

// By device. `Plan`: a planner, or what else has staging rows.
template <typename Plan>
std::vector<int64_t> StagingRows(const Plan& plan, int32_t devices) {
  std::vector<int64_t> rows;
  for (int32_t device = 0; device < devices; ++device) rows.push_back(plan.StagingRows(device));
  return rows;
}
inline std::vector<int64_t> StagingRows(const planner::Planner& plan) {
  return StagingRows(plan, plan.topology().devices());
}

// By device, numbers of the transfers it takes part in.
inline std::vector<std::vector<int32_t>> ByDevice(int32_t devices, const std::vector<planner::Transfer>& transfers) {
  std::vector<std::vector<int32_t>> numbers(devices);
  for (size_t i = 0; i < transfers.size(); ++i) {
    numbers[transfers[i].src].push_back(static_cast<int32_t>(i));
    if (transfers[i].dst != transfers[i].src) numbers[transfers[i].dst].push_back(static_cast<int32_t>(i));
  }
  return numbers;
}

inline bool Equal(const planner::Transfer& a, const planner::Transfer& b) {
  return a.phase == b.phase && a.stage == b.stage && a.src == b.src && a.dst == b.dst && a.origin == b.origin &&
         a.target == b.target && a.first_row == b.first_row && a.rows == b.rows && a.src_row == b.src_row &&
         a.dst_row == b.dst_row;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_TRANSFERS_H_
