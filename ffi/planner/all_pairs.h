// All server pairs side by side, in a few pieces: rows are spread over the rails, and nothing keeps senders apart.
// While one piece crosses, the next is balanced and the one before it redistributed. Schedulers of this kind differ in
// the tiles, which say what each rail carries.
#ifndef FASTJAX_PLANNER_ALL_PAIRS_H_
#define FASTJAX_PLANNER_ALL_PAIRS_H_

#include <cstdint>
#include <memory>

#include "planner/schedule.h"
#include "planner/tiles.h"
#include "planner/topology.h"

namespace fastjax::planner {

std::unique_ptr<Schedule> MakeAllPairs(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common = false);

// Entries that the cuts between pieces add to a device's table at most; docs/design/stage_tables.md.
int64_t MaxEntriesOfCuts(const Topology& topology);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_ALL_PAIRS_H_
