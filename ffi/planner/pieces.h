// How an exchange that sends everything at once is cut.
#ifndef FASTJAX_PLANNER_PIECES_H_
#define FASTJAX_PLANNER_PIECES_H_

#include <array>
#include <cstdint>

#include "planner/pricing.h"

namespace fastjax::planner {

// A part of what crosses between servers, in the order in which it crosses; kAll is all of it.
using Share = int64_t;
inline constexpr Share kAll = int64_t{1} << 20;

// What the busiest devices do inside servers around all that crosses, but for a share at one end, which needs none.
struct AroundWork {
  Picoseconds time = 0;
  Share none = 0;  // of balance the first, of redistribution the last
};

inline constexpr int32_t kMostPieces = 8;

struct Pieces {
  int32_t count = 0;
  std::array<Share, kMostPieces + 1> edges = {};
  // That lie bare: balance that pieces wait for, of the first one half, as NICs whose rows need none begin without it;
  // and the redistribution that is left when the last has crossed.
  Picoseconds balance = 0;
  Picoseconds redistribute = 0;
};

// Balance of each piece fits under the piece before it, and redistribution of each under the one behind it, so that
// only the first piece's balance and the last one's redistribution lie bare. The smaller those are, the more pieces it
// takes, each of which costs a start-up: cut where both together cost least. No piece is smaller than `smallest`.
Pieces CutAtOnce(Picoseconds scale_out, const AroundWork& balance, const AroundWork& redistribute, Picoseconds start_up,
                 Share smallest);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_PIECES_H_
