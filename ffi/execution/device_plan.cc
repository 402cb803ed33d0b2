#include "execution/device_plan.h"

namespace fastjax {

void DevicePlan::Take(const planner::DeviceSlice& slice, bool backwards) {
  here = true;
  stages = slice.stages;
  staging_rows = slice.staging_rows;
  scheduler = slice.scheduler;
  table_ = nullptr;
  count_ = slice.transfers.size();
  backwards_ = backwards;
  own_.assign(slice.transfers.begin(), slice.transfers.end());
}

void DevicePlan::View(const int32_t* words, bool backwards) {
  const planner::TableView table(words);
  here = true;
  stages = table.stages();
  staging_rows = table.staging_rows();
  scheduler = table.scheduler();
  table_ = table.entry_words();
  count_ = table.entries();
  backwards_ = backwards;
}

}  // namespace fastjax
