// What a plan is made of.
#ifndef FASTJAX_PLANNER_TRANSFER_H_
#define FASTJAX_PLANNER_TRANSFER_H_

#include <cstdint>

namespace fastjax::planner {

enum class Phase : int8_t {
  kLocal = 0,         // straight to the target inside a server; also rows that stay on their device
  kBalance = 1,       // to the device of the same server whose rail will carry the rows
  kScaleOut = 2,      // between servers
  kRedistribute = 3,  // from the rail's receiver to the target inside a server
};

// Rows [first_row, first_row + rows) of block (origin -> target) move from src to dst. `stage` is the scale-out
// stage that a balance transfer feeds, that a scale-out transfer is part of, or that a redistribution drains;
// -1 for local. src_row and dst_row say where the rows lie in the staging buffer of src and dst; kInPlace
// means the origin's operand (src) or the target's output (dst).
struct Transfer {
  static constexpr int64_t kInPlace = -1;

  Phase phase;
  int32_t stage;
  int32_t src;
  int32_t dst;
  int32_t origin;
  int32_t target;
  int64_t first_row;
  int64_t rows;
  int64_t src_row;
  int64_t dst_row;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TRANSFER_H_
