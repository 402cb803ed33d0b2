// Which rows of a server pair each of its rails carries.
#ifndef FASTJAX_PLANNER_SEGMENTS_H_
#define FASTJAX_PLANNER_SEGMENTS_H_

#include <cstdint>

namespace fastjax::planner {

// Rows [first_row, first_row + rows) of the block origin -> target (local indices), at `position` of a rail's list.
struct Segment {
  int64_t position;
  int64_t first_row;
  int64_t rows;
  int32_t origin;
  int32_t target;
};

// One rail's list for one server pair: segments [first, end) of a pool, `rows` rows in all where it is listed whole.
struct Rail {
  int32_t first = 0;
  int32_t end = 0;
  int64_t rows = 0;
};

// The device that a tile is filled for: its local index, in the server that sends or in the one that receives.
struct Viewer {
  int32_t local;
  bool sends;
};

// A way of assigning a tile's rows to rails.
class RailFiller {
 public:
  virtual ~RailFiller() = default;

  // Segments that Fill needs of the pool at most, those that it only tries included.
  virtual int64_t max_segments() const = 0;
  // Whether Fill lists less for a viewer.
  virtual bool heeds_viewer() const { return false; }
  // Rows that a rail may get beyond its quota: 0 for those that keep to quotas.
  virtual int64_t slack_rows(int64_t /*tile_rows*/) const { return 0; }
  // tile[i * stride + j] rows go from local device i to local device j of the other server; quotas sum to theirs.
  // Writes rails[0, m) and the segments at pool[first...]; returns the end of them. For a viewer, rails other than its
  // own list only what starts, or ends, at it, if heeds_viewer.
  virtual int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* viewer, Rail* rails,
                       Segment* pool, int32_t first) = 0;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SEGMENTS_H_
