// Declares DevicePlan: the part of a plan that one device executes.
#ifndef FASTJAX_EXECUTION_DEVICE_PLAN_H_
#define FASTJAX_EXECUTION_DEVICE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/table.h"
#include "planner/transfer.h"

namespace fastjax {

// Filled from a stage table that the user's program brought, or by the planner of an exchange that plans itself.
// Reused from exchange to exchange without allocating once it has seen the largest.
class DevicePlan {
 public:
  bool here = false;         // False for devices of other processes: nothing else holds then.
  int32_t stages = 0;        // Scale-out stages of the whole plan.
  int64_t staging_rows = 0;  // Rows of staging that this device needs.
  // Which scheduler made the plan; the same for all devices. A table may hold a number that is no scheduler's.
  planner::Scheduler scheduler = planner::kFallback;

  // Whether rows may rest on devices between their origin and their target.
  bool stages_rows() const { return planner::StagesRows(scheduler); }
  int64_t transfers() const { return count_; }
  // Calls visit(transfer) for its transfers in the order of the plan, as rows travel in this exchange, until visit
  // returns false. Returns whether it never did. Transfers are decoded as they are visited: a decoded plan would be
  // larger than caches are, and half of it is of no use where both ends of most transfers are here.
  template <typename Visit>
  bool ForEachTransfer(Visit visit) const;

  // `backwards`: rows travel the other way than they were planned to.
  void Take(const planner::DeviceSlice& slice, bool backwards);
  // Does the same with a table that planner::TableView::Check found sound. It must stay as long as the plan is used.
  void View(const int32_t* words, bool backwards);

 private:
  const int32_t* table_ = nullptr;  // the entries of the table; null: own_words_ are they
  std::vector<int32_t> own_words_;
  int64_t count_ = 0;  // of entries
  bool backwards_ = false;
};

template <typename Visit>
bool DevicePlan::ForEachTransfer(Visit visit) const {
  const int32_t* entry = table_ != nullptr ? table_ : own_words_.data();
  const int32_t* const end = entry + planner::kEntryWords * count_;
  if (backwards_) {
    for (; entry != end; entry += planner::kEntryWords) {
      if (!visit(planner::Transposed(planner::ReadEntry(entry), stages))) return false;
    }
  } else {
    for (; entry != end; entry += planner::kEntryWords) {
      if (!visit(planner::ReadEntry(entry))) return false;
    }
  }
  return true;
}

// By rank, of all devices of a group.
using DevicePlans = std::vector<DevicePlan>;

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_DEVICE_PLAN_H_
