// Tiles whose rows are balanced over the rails, for the schedulers that plan by them; several may have them in common.
#ifndef FASTJAX_PLANNER_BALANCED_TILES_H_
#define FASTJAX_PLANNER_BALANCED_TILES_H_

#include <memory>

#include "planner/rate.h"
#include "planner/tiles.h"
#include "planner/topology.h"

namespace fastjax::planner {

std::shared_ptr<Tiles> MakeBalancedTiles(const Topology& topology);

// What the sums of all tiles take, without what each rail carries, which only tables need.
Picoseconds BalancedTilesTime(const Topology& topology);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_BALANCED_TILES_H_
