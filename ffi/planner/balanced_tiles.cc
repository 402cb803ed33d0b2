#include "planner/balanced_tiles.h"

#include "planner/balance.h"

namespace fastjax::planner {

std::shared_ptr<Tiles> MakeBalancedTiles(const Topology& topology) {
  return std::make_shared<Tiles>(topology, std::make_unique<Balancer>(RailsOf(topology)));
}

Picoseconds BalancedTilesTime(const Topology& topology) {
  const Wide devices = topology.devices();
  return 1000 * (1400 + 3 * devices * devices / 5);
}

}  // namespace fastjax::planner
