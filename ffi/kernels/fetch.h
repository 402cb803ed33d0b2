// What a call reads of its device before it can begin, written to memory of the host by one launch of a kernel: each
// copy of its own would take the host, and the device, a few microseconds.
#ifndef FASTJAX_KERNELS_FETCH_H_
#define FASTJAX_KERNELS_FETCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/worker.h"

namespace fastjax::kernels {

// Some bytes, or, of a table that has room for more, those that are in use: `head`, and so often `each` as an int32
// `count_at` bytes from its beginning says.
struct Fetched {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;  // at most
  int64_t head = 0;
  int64_t each = 0;  // 0: all of them
  int64_t count_at = 0;
};

constexpr int32_t kMaxFetched = 8;

struct FetchList {
  int32_t count = 0;
  Fetched pieces[kMaxFetched];
};

FASTJAX_DEVICE inline int64_t BytesInUse(const Fetched& piece) {
  if (piece.each == 0) return piece.bytes;
  // What the table says has not been checked: any number gives a size between 0 and `bytes`.
  const int64_t count = *reinterpret_cast<const int32_t*>(piece.from + piece.count_at);
  const int64_t used = piece.head + (count < 0 ? 0 : count) * piece.each;
  return used < piece.bytes ? used : piece.bytes;
}

// A thread takes every so-many-th unit, so that a warp's lie side by side.
template <typename Unit>
FASTJAX_DEVICE inline void FetchUnits(const Worker& worker, const Fetched& piece, int64_t bytes) {
  const auto* const from = reinterpret_cast<const Unit*>(piece.from);
  auto* const to = reinterpret_cast<Unit*>(piece.to);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t i = worker.warp * worker.lanes + worker.lane; i < units; i += worker.warps * worker.lanes)
    to[i] = from[i];
}

FASTJAX_DEVICE inline void Fetch(const Worker& worker, const FetchList& list) {
  for (int32_t i = 0; i < list.count; ++i) {
    const Fetched& piece = list.pieces[i];
    const int64_t bytes = BytesInUse(piece);
    const auto any =
        reinterpret_cast<uintptr_t>(piece.from) | reinterpret_cast<uintptr_t>(piece.to) | static_cast<uintptr_t>(bytes);
    if (any % sizeof(uint32_t) == 0) {
      FetchUnits<uint32_t>(worker, piece, bytes);
    } else {
      FetchUnits<uint8_t>(worker, piece, bytes);
    }
  }
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_FETCH_H_
