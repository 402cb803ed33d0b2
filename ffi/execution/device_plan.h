// Declares DevicePlan: the part of a plan that one device executes.
#ifndef FASTJAX_EXECUTION_DEVICE_PLAN_H_
#define FASTJAX_EXECUTION_DEVICE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/table.h"
#include "planner/transfer.h"

namespace fastjax {

// It is filled from a stage table of the user's program, or by the planner of an exchange that plans itself. Later
// exchanges reuse it, and it allocates nothing once it has seen the largest.
class DevicePlan {
 public:
  bool here = false;         // False for devices of other processes: then all else is empty.
  int32_t stages = 0;        // Scale-out stages of the whole plan.
  int64_t staging_rows = 0;  // Rows of staging that this device needs.
  // Which scheduler made the plan; the same for all devices. A table may hold a number that is no scheduler's.
  planner::Scheduler scheduler = planner::kFallback;

  // Whether rows may be staged on devices between their origin and their target.
  bool stages_rows() const { return planner::StagesRows(scheduler); }
  int64_t transfers() const { return count_; }
  // Calls visit(transfer) for its transfers in the order of the plan, as rows travel in this exchange, until visit
  // returns false. Returns whether it never did.
  template <typename Visit>
  bool ForEachTransfer(Visit visit) const;

  // Takes what `plan` has for `device`. `transfers`: those that ForEachTransfer visits, the device's, all devices', or
  // none. `backwards`: rows travel in the reverse of the planned direction.
  void Take(const planner::Planner& plan, int32_t device, const planner::TransferRange& transfers, bool backwards);
  // Reads a table that planner::TableView::Check has accepted. The table must live as long as the plan is used.
  void View(const int32_t* words, bool backwards);

 private:
  // Entries of a table are decoded as they are visited: half of them are of no use where both ends are here.
  const int32_t* table_ = nullptr;  // the entries of the table; null: transfers are in own_
  std::vector<planner::Transfer> own_;
  int64_t count_ = 0;
  bool backwards_ = false;
};

template <typename Visit>
bool DevicePlan::ForEachTransfer(Visit visit) const {
  for (int64_t i = 0; i < count_; ++i) {
    const planner::Transfer transfer =
        table_ == nullptr ? own_[static_cast<size_t>(i)] : planner::ReadEntry(table_ + planner::kEntryWords * i);
    if (!visit(backwards_ ? planner::Transposed(transfer, stages) : transfer)) return false;
  }
  return true;
}

inline void DevicePlan::Take(const planner::Planner& plan, int32_t device, const planner::TransferRange& transfers,
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

inline void DevicePlan::View(const int32_t* words, bool backwards) {
  const planner::TableView table(words);
  here = true;
  stages = table.stages();
  staging_rows = table.staging_rows();
  scheduler = table.scheduler();
  table_ = table.entry_words();
  count_ = table.entries();
  backwards_ = backwards;
}

// The plans of all devices of a group, by rank.
using DevicePlans = std::vector<DevicePlan>;

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_DEVICE_PLAN_H_
