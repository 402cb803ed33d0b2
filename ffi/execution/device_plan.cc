#include "execution/device_plan.h"

namespace fastjax {
namespace {

using planner::Transfer;

void Transpose(int32_t stages, std::vector<Transfer>* transfers) {
  for (Transfer& transfer : *transfers) transfer = planner::Transposed(transfer, stages);
}

}  // namespace

void DevicePlan::Take(const planner::DeviceSlice& slice, bool backwards) {
  here = true;
  stages = slice.stages;
  staging_rows = slice.staging_rows;
  scheduler = slice.scheduler;
  transfers.assign(slice.transfers.begin(), slice.transfers.end());
  if (backwards) Transpose(stages, &transfers);
}

void DevicePlan::Decode(const int32_t* words, bool backwards) {
  const planner::TableView table(words);
  here = true;
  stages = table.stages();
  staging_rows = table.staging_rows();
  scheduler = table.scheduler();
  transfers.resize(static_cast<size_t>(table.entries()));
  table.CopyTo(transfers.data());
  if (backwards) Transpose(stages, &transfers);
}

}  // namespace fastjax
