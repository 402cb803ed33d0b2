// RailS (arXiv 2510.19262), all server pairs side by side: every server sprays what it has for another over its rails.
// Blocks are cut into chunks, and the longest go first, each to the rail that is least loaded. What the sending server
// knows is all that it takes.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "planner/all_pairs.h"
#include "planner/balance.h"
#include "planner/schedule.h"
#include "planner/tiles.h"

namespace fastjax::planner {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kFullChunksPerRail = 4;

// A block has one chunk that is not full, and all of a tile's full ones are no more than kFullChunksPerRail a rail.
int64_t MaxChunks(int64_t rails) { return rails * rails + kFullChunksPerRail * rails; }
// Does the same for the blocks of one origin, or of one target.
int64_t MaxChunksOfDevice(int64_t rails) { return rails + kFullChunksPerRail * rails; }

class Sprayer final : public RailFiller {
 public:
  Sprayer(int32_t rails, int64_t row_bytes) : rails_(rails), row_bytes_(row_bytes), room_(rails) {
    chunks_.reserve(static_cast<size_t>(MaxChunks(rails)));
    order_.reserve(static_cast<size_t>(MaxChunks(rails)));
    roomiest_.reserve(static_cast<size_t>(MaxChunks(rails)) + rails);
  }

  int64_t max_segments() const override { return MaxChunks(rails_); }
  int64_t slack_rows(int64_t tile_rows) const override { return tile_rows == 0 ? 0 : ChunkRows(tile_rows) - 1; }

  int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* /*viewer*/, Rail* rails,
               Segment* pool, int32_t first) override {
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

 private:
  struct Chunk {
    int64_t first_row;
    int64_t rows;
    int32_t origin;
    int32_t target;
    int32_t rail;
  };

  // A mebibyte, where the tile is small enough.
  int64_t ChunkRows(int64_t tile_rows) const {
    return std::max<int64_t>({kChunkBytes / row_bytes_, 1, tile_rows / (kFullChunksPerRail * rails_) + 1});
  }

  // In the order of LPT (Graham, 1969), the longest first; blocks in order where chunks are equal.
  void Cut(const int64_t* tile, int64_t stride) {
    int64_t sum = 0;
    for (int32_t origin = 0; origin < rails_; ++origin) {
      for (int32_t target = 0; target < rails_; ++target) sum += tile[origin * stride + target];
    }
    const int64_t full = ChunkRows(sum);
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

  // A chunk stays with its sender, or goes by its receiver's rail, as long as it fits there. Else it goes by the
  // roomiest: there always is one with room, which is left for as many rows as are to come.
  int32_t ChooseRail(const Chunk& chunk) {
    if (room_[chunk.origin] >= chunk.rows) return chunk.origin;
    if (room_[chunk.target] >= chunk.rows) return chunk.target;
    for (;;) {
      const auto [room, negative] = roomiest_.front();
      if (room_[-negative] == room) return -negative;
      std::pop_heap(roomiest_.begin(), roomiest_.end());
      roomiest_.pop_back();
    }
  }

  // Chunks by rail, in order of their blocks.
  int32_t List(Rail* rails, Segment* pool, int32_t first) {
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

  int32_t rails_;
  int64_t row_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<std::pair<int64_t, int32_t>> order_;     // of chunks: the longest first, then in order of their blocks
  std::vector<int64_t> room_;                          // by rail
  std::vector<std::pair<int64_t, int32_t>> roomiest_;  // a heap; entries that are out of date are dropped when met
};

// All chunks of a tile may lie on one rail.
int64_t MaxEntries(const Topology& topology) {
  const int64_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t local = 2 * m - 1;
  const int64_t rail = peers * MaxChunks(m);
  const int64_t cut = MaxEntriesOfCuts(topology);
  if (m == 1) return local + 2 * rail + cut;
  return local + 4 * rail + 2 * peers * MaxChunksOfDevice(m) + cut;
}

}  // namespace

// "auto" does not look at it: by the cost model it takes as long as "balanced", and longer to plan.
constexpr SchedulerInfo kRailsScheduler = {
    {"rails", "rows are sprayed over the rails and cross between all servers side by side",
     /*order=*/40, /*stages_rows=*/true, NicNeed::kAnyOfServer, Choosing::kByName},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      auto filler = std::make_unique<Sprayer>(RailsOf(topology), row_bytes);
      return MakeAllPairs(std::make_shared<Tiles>(topology, std::move(filler)), row_bytes);
    },
    MaxEntries,
    {1'000'000, /*block=*/1500, /*sent=*/160'000},  // measured like that of fast: within a quarter
    kTileSums,
};

}  // namespace fastjax::planner
