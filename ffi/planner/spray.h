// Spraying of one server pair (RailS, arXiv 2510.19262): blocks are cut into chunks, and the longest go first, each to
// the rail that is least loaded (LPT). What the sending server knows is all that it takes.
#ifndef FASTJAX_PLANNER_SPRAY_H_
#define FASTJAX_PLANNER_SPRAY_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/segments.h"

namespace fastjax::planner {

class Sprayer final : public RailFiller {
 public:
  Sprayer(int32_t rails, int64_t row_bytes);

  // A block has one chunk that is not full, and all of a tile's full ones are no more than kFullChunksPerRail a rail.
  static int64_t MaxChunks(int32_t rails) { return int64_t{rails} * rails + kFullChunksPerRail * rails; }
  // Does the same for the blocks of one origin, or of one target.
  static int64_t MaxChunksOfDevice(int32_t rails) { return rails + kFullChunksPerRail * rails; }
  // A mebibyte, where the tile is small enough.
  static int64_t ChunkRows(int32_t rails, int64_t row_bytes, int64_t tile_rows);

  int64_t max_segments() const override { return MaxChunks(rails_); }
  int64_t slack_rows(int64_t tile_rows) const override {
    return tile_rows == 0 ? 0 : ChunkRows(rails_, row_bytes_, tile_rows) - 1;
  }
  int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* viewer, Rail* rails,
               Segment* pool, int32_t first) override;

 private:
  static constexpr int64_t kFullChunksPerRail = 4;

  struct Chunk {
    int64_t first_row;
    int64_t rows;
    int32_t origin;
    int32_t target;
    int32_t rail;
  };

  void Cut(const int64_t* tile, int64_t stride);
  int32_t ChooseRail(const Chunk& chunk);
  int32_t RoomiestRail();
  int32_t List(Rail* rails, Segment* pool, int32_t first);

  int32_t rails_;
  int64_t row_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<std::pair<int64_t, int32_t>> order_;     // of chunks: the longest first, then in order of their blocks
  std::vector<int64_t> room_;                          // by rail
  std::vector<std::pair<int64_t, int32_t>> roomiest_;  // a heap; entries that are out of date are dropped when met
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SPRAY_H_
