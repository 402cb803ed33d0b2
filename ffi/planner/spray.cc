#include "planner/spray.h"

#include <algorithm>

namespace fastjax::planner {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

}  // namespace

Sprayer::Sprayer(int32_t rails, int64_t row_bytes) : rails_(rails), row_bytes_(row_bytes), room_(rails) {
  chunks_.reserve(static_cast<size_t>(MaxChunks(rails)));
  order_.reserve(static_cast<size_t>(MaxChunks(rails)));
  roomiest_.reserve(static_cast<size_t>(MaxChunks(rails)) + rails);
}

int64_t Sprayer::ChunkRows(int32_t rails, int64_t row_bytes, int64_t tile_rows) {
  return std::max<int64_t>({kChunkBytes / row_bytes, 1, tile_rows / (kFullChunksPerRail * rails) + 1});
}

int32_t Sprayer::Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* /*viewer*/, Rail* rails,
                      Segment* pool, int32_t first) {
  Cut(tile, stride);
  roomiest_.clear();
  for (int32_t rail = 0; rail < rails_; ++rail) {
    room_[rail] = quotas[rail];
    // Rails without a quota are no rails here.
    if (quotas[rail] > 0) roomiest_.emplace_back(quotas[rail], -rail);
    rails[rail] = Rail();
  }
  std::make_heap(roomiest_.begin(), roomiest_.end());
  for (const auto& [rows, i] : order_) {
    Chunk& chunk = chunks_[i];
    chunk.rail = ChooseRail(chunk);
    room_[chunk.rail] -= chunk.rows;
    if (room_[chunk.rail] > 0) {
      roomiest_.emplace_back(room_[chunk.rail], -chunk.rail);
      std::push_heap(roomiest_.begin(), roomiest_.end());
    }
  }
  return List(rails, pool, first);
}

// Chunks by rail, in order of their blocks.
int32_t Sprayer::List(Rail* rails, Segment* pool, int32_t first) {
  for (const Chunk& chunk : chunks_) ++rails[chunk.rail].end;
  for (int32_t rail = 0; rail < rails_; ++rail) {
    const int32_t count = rails[rail].end;
    rails[rail].first = rails[rail].end = first;
    first += count;
  }
  for (const Chunk& chunk : chunks_) {
    Rail& rail = rails[chunk.rail];
    pool[rail.end++] = {rail.rows, chunk.first_row, chunk.rows, chunk.origin, chunk.target};
    rail.rows += chunk.rows;
  }
  return first;
}

// In the order of LPT (Graham, 1969), the longest first; blocks in order where chunks are equal.
void Sprayer::Cut(const int64_t* tile, int64_t stride) {
  int64_t sum = 0;
  for (int32_t origin = 0; origin < rails_; ++origin) {
    for (int32_t target = 0; target < rails_; ++target) sum += tile[origin * stride + target];
  }
  const int64_t full = ChunkRows(rails_, row_bytes_, sum);
  chunks_.clear();
  for (int32_t origin = 0; origin < rails_; ++origin) {
    for (int32_t target = 0; target < rails_; ++target) {
      const int64_t rows = tile[origin * stride + target];
      for (int64_t row = 0; row < rows; row += full) {
        chunks_.push_back({row, std::min(full, rows - row), origin, target, 0});
      }
    }
  }
  order_.clear();
  for (size_t i = 0; i < chunks_.size(); ++i) order_.emplace_back(-chunks_[i].rows, static_cast<int32_t>(i));
  std::sort(order_.begin(), order_.end());
}

// A chunk stays with its sender, or goes by its receiver's rail, as long as it fits there.
int32_t Sprayer::ChooseRail(const Chunk& chunk) {
  if (room_[chunk.origin] >= chunk.rows) return chunk.origin;
  if (room_[chunk.target] >= chunk.rows) return chunk.target;
  return RoomiestRail();
}

// There always is one: room is left for as many rows as are to come.
int32_t Sprayer::RoomiestRail() {
  for (;;) {
    const auto [room, negative] = roomiest_.front();
    if (room_[-negative] == room) return -negative;
    std::pop_heap(roomiest_.begin(), roomiest_.end());
    roomiest_.pop_back();
  }
}

}  // namespace fastjax::planner
