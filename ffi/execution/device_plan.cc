#include "execution/device_plan.h"

namespace fastjax {

// Slices have rows that int32 can number.
void DevicePlan::Take(const planner::DeviceSlice& slice, bool backwards) {
  here = true;
  stages = slice.stages;
  staging_rows = slice.staging_rows;
  scheduler = slice.scheduler;
  table_ = nullptr;
  count_ = slice.transfers.size();
  backwards_ = backwards;
  own_words_.resize(static_cast<size_t>(planner::kEntryWords * count_));
  int32_t* entry = own_words_.data();
  for (const planner::Transfer& transfer : slice.transfers) {
    planner::WriteEntry(transfer, entry);
    entry += planner::kEntryWords;
  }
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
