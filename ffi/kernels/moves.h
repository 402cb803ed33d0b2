// The arithmetic of the row kernels: copying rows that lie in many runs. The same source runs on GPUs and, for tests,
// on the host.
//
// Work is split by bytes, never by run: a run of any length costs what its bytes cost, and one without bytes is not
// listed. For that all runs lie end to end on a line, which is cut into tiles.
#ifndef FASTJAX_KERNELS_MOVES_H_
#define FASTJAX_KERNELS_MOVES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/worker.h"

namespace fastjax::kernels {

// `bytes` bytes to be copied, at `begin` on the line. Runs are in order of `begin` and do not overlap there; begin and
// dst are equal modulo kAlignment, so that tiles begin at aligned addresses.
struct Move {
  std::byte* dst;
  const std::byte* src;
  int64_t begin;
  int64_t bytes;
};

constexpr int64_t kAlignment = 16;
// What a launch takes by value, as a parameter of the kernel. Parameters may have 4 KiB with every CUDA; HIP adds a
// quarter of a KiB of its own to them.
constexpr int64_t kFewMoves = 112;
// What a warp takes at a time: enough that finding its runs costs little.
constexpr int64_t kTileBytes = 8192;
// The least: what the threads of a warp of 32 have in flight at once.
constexpr int64_t kSmallTileBytes = 2048;
// The number of threads of a warp that share a run where runs are short.
constexpr int32_t kGroupThreads = 8;

// Tiles are smaller where warps would have less than two each: all are to have work, and to end together.
FASTJAX_DEVICE inline int64_t TileBytes(int64_t end, int64_t warps) {
  int64_t bytes = kTileBytes;
  while (bytes > kSmallTileBytes && end < 2 * bytes * warps) bytes /= 2;
  return bytes;
}

// Where on the line a run to `dst` begins if the one before it ends at `end`.
inline int64_t NextBegin(int64_t end, const void* dst) {
  const auto phase = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % kAlignment);
  return end + (phase - end % kAlignment + kAlignment) % kAlignment;
}

// The number of the last run that begins at or before `position`, or 0.
template <typename Run>
FASTJAX_DEVICE inline int64_t FindRun(const Run* runs, int64_t count, int64_t position) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (runs[middle].begin <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls part(group, run, first, bytes), first counted from the run's begin, for all that lies on the tiles of a warp;
// each part is for `group`, a worker or a group of its threads. The line ends at `end`.
//
// No warp has more than end / warps rounded up, plus a tile, whatever the runs are: with n tiles it has at most n /
// warps of them, rounded up.
template <typename Run, typename Part>
FASTJAX_DEVICE inline void ForEachPart(const Worker& worker, const Run* runs, int64_t count, int64_t end, Part part) {
  const int64_t tile_bytes = TileBytes(end, worker.warps);
  const int32_t groups = worker.threads / kGroupThreads;
  for (int64_t first = worker.warp * tile_bytes; first < end; first += worker.warps * tile_bytes) {
    const int64_t last = first + tile_bytes;
    Worker group = worker;
    int64_t stride = 1;
    int64_t i = FindRun(runs, count, first);
    // More runs than groups: each group takes its own, so that loads of several short runs are in flight together.
    if (i + groups < count && runs[i + groups].begin < last) {
      i += worker.thread / kGroupThreads;
      stride = groups;
      group.thread = worker.thread % kGroupThreads;
      group.threads = kGroupThreads;
    }
    for (; i < count && runs[i].begin < last; i += stride) {
      const Run& run = runs[i];
      const int64_t from = run.begin < first ? first : run.begin;
      const int64_t to = run.begin + run.bytes < last ? run.begin + run.bytes : last;
      if (from < to) part(group, run, from - run.begin, to - from);
    }
  }
}

// Threads side by side store whole(load(i)) for each of `words` words; `kHeld` loads of a thread are in flight
// together.
template <int32_t kHeld, typename Load, typename Whole>
FASTJAX_DEVICE inline void StoreWords(const Worker& group, std::byte* dst, int64_t words, Load load, Whole whole) {
  auto* to = reinterpret_cast<Word16*>(dst);
  const int64_t step = group.threads;
  for (int64_t i = group.thread; i < words; i += kHeld * step) {
    decltype(load(i)) held[kHeld] = {};
    for (int32_t k = 0; k < kHeld; ++k) {
      if (i + k * step < words) held[k] = load(i + k * step);
    }
    for (int32_t k = 0; k < kHeld; ++k) {
      if (i + k * step < words) StoreOnce(to + i + k * step, whole(held[k]));
    }
  }
}

struct Neighbours {
  Word16 first;
  Word16 second;
};

// Eight of the 16 bytes that a and then b hold, from bit `bits` of a on; bits < 64.
FASTJAX_DEVICE inline uint64_t Joined(uint64_t a, uint64_t b, int32_t bits) {
  return (a >> bits) | ((b << 1) << (63 - bits));
}

// The 16 bytes from byte `skip` of the 32; skip < 16.
FASTJAX_DEVICE inline Word16 Joined(const Neighbours& words, int32_t skip) {
  const uint64_t a = skip < 8 ? words.first.low : words.first.high;
  const uint64_t b = skip < 8 ? words.first.high : words.second.low;
  const uint64_t c = skip < 8 ? words.second.low : words.second.high;
  return {Joined(a, b, skip % 8 * 8), Joined(b, c, skip % 8 * 8)};
}

// Loads and stores are of aligned words whatever the alignment of src to dst: where it differs, each word stored is
// joined from the two that it lies in. What is left at either end goes byte by byte.
FASTJAX_DEVICE inline void CopyPart(const Worker& group, std::byte* dst, const std::byte* src, int64_t bytes) {
  const auto to = reinterpret_cast<uintptr_t>(dst);
  const auto skip = static_cast<int32_t>((reinterpret_cast<uintptr_t>(src) - to) % kAlignment);
  int64_t head = static_cast<int64_t>((0 - to) % kAlignment);
  if (head < skip) head += kAlignment;  // words that are loaded begin in the part
  int64_t words = (bytes - head + skip) / kAlignment;
  if (skip != 0) --words;  // and end in it
  if (words < 0) words = 0;
  const int64_t edges = bytes - words * kAlignment;
  if (words == 0) head = edges;
  for (int64_t i = group.thread; i < edges; i += group.threads) {
    const int64_t at = i < head ? i : i + words * kAlignment;
    dst[at] = src[at];
  }
  const auto* from = reinterpret_cast<const Word16*>(src + head - skip);
  if (skip == 0) {
    StoreWords<4>(
        group, dst + head, words, [=](int64_t i) { return LoadOnce(from + i); },
        [](const Word16& word) { return word; });
  } else {
    StoreWords<2>(
        group, dst + head, words, [=](int64_t i) { return Neighbours{from[i], from[i + 1]}; },
        [=](const Neighbours& words) { return Joined(words, skip); });
  }
}

// All of a warp's share of the moves.
FASTJAX_DEVICE inline void MoveRows(const Worker& worker, const Move* moves, int64_t count, int64_t end) {
  ForEachPart(worker, moves, count, end, [](const Worker& group, const Move& move, int64_t first, int64_t bytes) {
    CopyPart(group, move.dst + first, move.src + first, bytes);
  });
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_MOVES_H_
