// Declares Pipeline, which says in which pipeline step a transfer is.
#ifndef FASTJAX_EXECUTION_PIPELINE_H_
#define FASTJAX_EXECUTION_PIPELINE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "execution/device_plan.h"
#include "planner/transfer.h"

namespace fastjax {

inline constexpr int32_t kPhases = 4;

// The balance of a stage comes one pipeline step before its scale-out, and its redistribution one after, so that three
// stages are in flight at a time. Where no row is staged, there is neither balance nor redistribution.
class Pipeline {
 public:
  // The most pipeline steps of a plan.
  static constexpr int64_t kMaxSteps = std::numeric_limits<int32_t>::max();

  Pipeline() = default;
  // The pipeline of the plans of the local devices.
  explicit Pipeline(const DevicePlans& plans) {
    bool stages_rows = false;
    bool all_here = true;
    int64_t transfers = 0;
    for (const DevicePlan& plan : plans) {
      all_here = all_here && plan.here;
      if (!plan.here) continue;
      plan_stages_ = std::max(plan_stages_, plan.stages);
      transfers += plan.transfers();
      stages_rows = stages_rows || plan.stages_rows();
    }
    if (stages_rows) after_ = {1, 0, 1, 2};
    possible_ = !all_here || plan_stages_ <= transfers;
  }

  // Whether there can be so many stages: every stage of a plan has a transfer. True if some transfers are only in the
  // plans of other processes.
  bool possible() const { return possible_; }
  int32_t plan_stages() const { return plan_stages_; }
  // Returns the pipeline step of a transfer, from 0.
  int64_t StepOf(planner::Phase phase, int32_t stage) const {
    return int64_t{stage} + after_[static_cast<size_t>(phase)];
  }

 private:
  bool possible_ = true;
  int32_t plan_stages_ = 0;
  // By phase: how many pipeline steps after the first one its stage 0 is. Local transfers are of stage -1.
  std::array<int32_t, kPhases> after_ = {1, 0, 0, 1};
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_PIPELINE_H_
