// The arithmetic of the GPU's row kernels, on the host: every byte of every run is moved once, whatever the
// alignments, and nothing beside it is touched; the work is split by bytes.
#include "kernels/moves.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "support/check.h"
#include "support/gpu_driver/lists.h"
#include "support/random.h"

namespace fastjax::test {
namespace {

using kernels::kAlignment;
using kernels::kSmallTileBytes;
using kernels::kTileBytes;
using kernels::Move;
using kernels::Worker;

// Memory whose first byte is at a multiple of kAlignment.
class AlignedMemory {
 public:
  AlignedMemory(int64_t bytes, Random* random) : memory_(RandomBytes(static_cast<size_t>(bytes + kAlignment), random)) {
    const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.data()) % kAlignment);
    first_ = (kAlignment - at) % kAlignment;
  }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  std::byte* data() { return memory_.data() + first_; }
  const std::vector<std::byte>& all() const { return memory_; }
  int64_t Offset(const std::byte* at) const { return at - memory_.data(); }

 private:
  std::vector<std::byte> memory_;
  int64_t first_ = 0;
};

// Thread by thread and warp by warp, in any order: they share nothing.
template <typename Kernel>
void RunGrid(int64_t warps, int32_t threads, Kernel kernel) {
  for (int64_t warp = warps - 1; warp >= 0; --warp) {
    for (int32_t thread = 0; thread < threads; ++thread) kernel(Worker{warp, warps, thread, threads});
  }
}

struct Grid {
  int64_t warps;
  int32_t threads;
};

Grid RandomGrid(Random* random) {
  return {Below(random, 4) == 0 ? 1 + Below(random, 3000) : 1 + Below(random, 20), Below(random, 2) == 0 ? 32 : 64};
}

std::string Text(const Grid& grid) {
  return std::to_string(grid.warps) + " warps of " + std::to_string(grid.threads) + " threads";
}

void CheckMoves(const std::vector<Move>& moves, const Grid& grid, const AlignedMemory& dst) {
  const int64_t count = static_cast<int64_t>(moves.size());
  const int64_t end = moves.back().begin + moves.back().bytes;
  std::vector<std::byte> expected = dst.all();
  for (const Move& move : moves) {
    std::memcpy(expected.data() + dst.Offset(move.dst), move.src, static_cast<size_t>(move.bytes));
  }
  RunGrid(grid.warps, grid.threads, [&](const Worker& worker) { kernels::MoveRows(worker, moves.data(), count, end); });
  CHECK(dst.all() == expected);
}

// One run for each of the 256 pairs of alignments, at each length; sources end where their memory does, so that the
// address sanitizer sees what reads too far.
TEST(Alignments) {
  Random random(1);
  std::vector<int64_t> lengths;
  for (int64_t bytes = 1; bytes <= 64; ++bytes) lengths.push_back(bytes);
  for (const int64_t cut : {kSmallTileBytes, kTileBytes}) {
    for (const int64_t beside : {-33, -17, -1, 0, 1, 15, 31}) lengths.push_back(cut + beside);
  }
  lengths.push_back(5 * kTileBytes + 7);
  for (const int64_t bytes : lengths) {
    const Context context(std::to_string(bytes) + " bytes");
    const Grid grid = {1 + Below(&random, 3), Below(&random, 2) == 0 ? 32 : 64};
    for (int64_t from = 0; from < kAlignment; ++from) {
      AlignedMemory src(from + bytes, &random);
      for (int64_t to = 0; to < kAlignment; ++to) {
        AlignedMemory dst(bytes + 3 * kAlignment, &random);
        std::byte* at = dst.data() + kAlignment + to;
        CheckMoves({{at, src.data() + from, kernels::NextBegin(0, at), bytes}}, grid, dst);
      }
    }
  }
}

struct Place {
  int64_t at;
  int64_t bytes;
};

// Sources begin in the first 64 bytes, or, if all is alike, where their destination does modulo kAlignment.
std::vector<Move> ListMoves(const std::vector<Place>& places, std::byte* dst, const std::byte* src, Random* random) {
  const bool alike = Below(random, 2) == 0;
  std::vector<Move> moves;
  int64_t end = 0;
  for (const Place& place : places) {
    std::byte* to = dst + place.at;
    const int64_t begin = kernels::NextBegin(end, to);
    CHECK_GE(begin, end);
    CHECK_LT(begin, end + kAlignment);
    CHECK_EQ(begin % kAlignment, static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kAlignment));
    moves.push_back({to, src + (alike ? place.at % kAlignment : Below(random, 64)), begin, place.bytes});
    end = begin + place.bytes;
  }
  return moves;
}

// Every thread writes bytes that no other writes: what one has written is counted and taken back before the next.
TEST(WrittenOnce) {
  Random random(6);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t count = 1 + Below(&random, 3);
    const Grid grid = {1 + Below(&random, 3), trial % 2 == 0 ? 32 : 64};
    const Context context("trial " + std::to_string(trial) + ", " + Text(grid));
    std::vector<std::byte> dst(static_cast<size_t>(count) * 3000);
    const std::vector<std::byte> src(3000, std::byte{1});
    std::vector<Place> places;
    for (int64_t i = 0; i < count; ++i) places.push_back({i * 3000 + Below(&random, 16), 1 + Below(&random, 2900)});
    const std::vector<Move> moves = ListMoves(places, dst.data(), src.data(), &random);
    std::vector<int> wanted(dst.size());
    for (const Place& place : places) std::fill_n(wanted.begin() + place.at, place.bytes, 1);
    std::vector<int> written(dst.size());
    RunGrid(grid.warps, grid.threads, [&](const Worker& worker) {
      kernels::MoveRows(worker, moves.data(), count, moves.back().begin + moves.back().bytes);
      for (size_t i = 0; i < dst.size(); ++i) written[i] += static_cast<int>(std::exchange(dst[i], std::byte{0}));
    });
    CHECK(written == wanted);
  }
}

struct Run {
  int64_t begin;
  int64_t bytes;
};

// ForEachPart gives every byte of the runs to one warp once, in parts that lie on one tile, and no warp too many.
void CheckSplit(const std::vector<Run>& runs, const Grid& grid) {
  const auto count = static_cast<int64_t>(runs.size());
  const int64_t end = runs.back().begin + runs.back().bytes;
  std::vector<uint32_t> given(static_cast<size_t>(end));
  const int64_t tile = kernels::TileBytes(end, grid.warps);
  CHECK(tile >= kSmallTileBytes && tile <= kTileBytes);
  int64_t busiest = 0;
  bool within = true;
  for (int64_t warp = 0; warp < grid.warps; ++warp) {
    int64_t bytes_of_warp = 0;
    for (int32_t thread = 0; thread < grid.threads; ++thread) {
      kernels::ForEachPart(Worker{warp, grid.warps, thread, grid.threads}, runs.data(), count, end,
                           [&](const Worker& group, const Run& run, int64_t first, int64_t bytes) {
                             within = within && first >= 0 && bytes > 0 && first + bytes <= run.bytes;
                             within = within && group.thread >= 0 && group.thread < group.threads;
                             within = within && (run.begin + first) / tile == (run.begin + first + bytes - 1) / tile;
                             if (group.thread != 0) return;  // its group's first thread counts for all
                             bytes_of_warp += bytes;
                             for (int64_t i = 0; i < bytes; ++i) ++given[static_cast<size_t>(run.begin + first + i)];
                           });
    }
    busiest = std::max(busiest, bytes_of_warp);
  }
  std::vector<uint32_t> wanted(given.size());
  for (const Run& run : runs) {
    for (int64_t i = run.begin; i < run.begin + run.bytes; ++i) wanted[static_cast<size_t>(i)] = 1;
  }
  CHECK(within);
  CHECK(given == wanted);
  // With n = ceil(end / tile) tiles, a warp has at most ceil(n / warps) of them, which is ceil(end / (tile * warps)).
  const int64_t round = tile * grid.warps;
  CHECK_LE(busiest, (end + round - 1) / round * tile);
  CHECK_LE(busiest, (end + grid.warps - 1) / grid.warps + tile);
}

TEST(Split) {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const Grid grid = RandomGrid(&random);
    const Context context("trial " + std::to_string(trial) + ", " + Text(grid));
    std::vector<Run> runs;
    const bool skewed = trial % 2 == 0;
    const int64_t count = skewed ? 300 : 1 + Below(&random, 60);
    const int64_t huge = Below(&random, count);
    int64_t end = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bytes = skewed ? (i == huge ? 60 * kTileBytes + 5 : 1 + Below(&random, 40))
                                   : gpu_support::RandomLength(5 * kTileBytes, &random);
      runs.push_back({end + Below(&random, kAlignment), bytes});
      end = runs.back().begin + bytes;
    }
    CheckSplit(runs, grid);
  }
}

}  // namespace
}  // namespace fastjax::test
