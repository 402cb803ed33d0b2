#include "execution/device_plan.h"

namespace fastjax {

void DevicePlan::Take(const planner::Planner& plan, int32_t device, const planner::TransferRange& transfers,
                      bool backwards) {
  here = true;
  stages = plan.num_stages();
  staging_rows = plan.StagingRows(device);
  scheduler = plan.chosen();
  table_ = nullptr;
  count_ = transfers.size();
  backwards_ = backwards;
  own_.assign(transfers.begin(), transfers.end());
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
