// Rows that indices name, copied one behind the other: an exchange sends them without copying them first. The indices
// stay on the device.
#ifndef FASTJAX_KERNELS_GATHERS_H_
#define FASTJAX_KERNELS_GATHERS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/moves.h"

namespace fastjax::kernels {

// Rows to be copied to dst: the first is row indices[0] of the array at src, which has `rows` rows. On the line like a
// Move.
struct Gather {
  std::byte* dst;
  const std::byte* src;
  const int32_t* indices;
  int64_t rows;
  int64_t begin;
  int64_t bytes;
};

// So long a row keeps the threads of a whole warp busy; shorter ones are for groups of them.
constexpr int64_t kWarpRowBytes = 1024;

// An index of no row gives zeros: the host, which does not read it, cannot refuse it.
FASTJAX_DEVICE inline void GatherRowPart(const Worker& group, const Gather& gather, int64_t row_bytes, int64_t row,
                                         int64_t from, int64_t to) {
  const int64_t index = gather.indices[row];
  std::byte* const dst = gather.dst + from;
  if (index >= 0 && index < gather.rows) {
    CopyPart(group, dst, gather.src + index * row_bytes + (from - row * row_bytes), to - from);
  } else {
    for (int64_t i = group.thread; i < to - from; i += group.threads) dst[i] = std::byte{0};
  }
}

// Copies the `bytes` bytes that begin `first` bytes into a gather, row by row.
FASTJAX_DEVICE inline void GatherPart(const Worker& worker, const Gather& gather, int64_t row_bytes, int64_t first,
                                      int64_t bytes) {
  Worker group = worker;
  int64_t row = first / row_bytes;
  int64_t stride = 1;
  // Loads of several short rows are in flight together.
  if (row_bytes < kWarpRowBytes && worker.threads > kGroupThreads) {
    row += worker.thread / kGroupThreads;
    stride = worker.threads / kGroupThreads;
    group.thread = worker.thread % kGroupThreads;
    group.threads = kGroupThreads;
  }
  const int64_t last = first + bytes;
  for (; row * row_bytes < last; row += stride) {
    const int64_t begin = row * row_bytes;
    const int64_t end = begin + row_bytes;
    GatherRowPart(group, gather, row_bytes, row, begin < first ? first : begin, end < last ? end : last);
  }
}

// All of a warp's share of the gathers; rows have bytes.
FASTJAX_DEVICE inline void GatherRows(const Worker& worker, const Gather* gathers, int64_t count, int64_t end,
                                      int64_t row_bytes) {
  ForEachPart(worker, gathers, count, end,
              [=](const Worker& group, const Gather& gather, int64_t first, int64_t bytes) {
                GatherPart(group, gather, row_bytes, first, bytes);
              });
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_GATHERS_H_
