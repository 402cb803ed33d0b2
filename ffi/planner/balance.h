// Balance of one server pair: which rail carries which rows, so that every rail carries its quota and the fewest rows
// move inside the two servers.
#ifndef FASTJAX_PLANNER_BALANCE_H_
#define FASTJAX_PLANNER_BALANCE_H_

#include <cstdint>
#include <memory>

#include "planner/schedule.h"
#include "planner/tiles.h"
#include "planner/topology.h"

namespace fastjax::planner {

// Lists what needs no balance first on each rail, and what needs no redistribution last.
std::unique_ptr<RailFiller> MakeBalancer(int32_t rails);

// Tiles whose rows are balanced over the rails; several schedulers may have them in common.
std::shared_ptr<Tiles> MakeBalancedTiles(const Topology& topology);

// The sums of all tiles, without the rail assignment, which only tables need.
inline constexpr PlanningCost kTileSums = {1'400'000, /*block=*/600};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_BALANCE_H_
