// FAST on tiles that it may have in common with another schedule.
#ifndef FASTJAX_PLANNER_SCHEDULERS_FAST_H_
#define FASTJAX_PLANNER_SCHEDULERS_FAST_H_

#include <cstdint>
#include <memory>

#include "planner/schedule.h"
#include "planner/tiles.h"

namespace fastjax::planner {

std::unique_ptr<Schedule> MakeFastOn(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SCHEDULERS_FAST_H_
