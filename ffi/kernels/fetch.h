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
  Fetched entries[kMaxFetched];
};

// What a table says of itself; 0: it is none.
FASTJAX_DEVICE inline int32_t ReadCount(const Fetched& fetched) {
  return fetched.each == 0 ? 0 : *reinterpret_cast<const int32_t*>(fetched.from + fetched.count_at);
}

FASTJAX_DEVICE inline int64_t BytesInUse(const Fetched& fetched, int32_t count) {
  if (fetched.each == 0) return fetched.bytes;
  // What the table says has not been checked: any number gives a size between 0 and `bytes`.
  const int64_t used = fetched.head + static_cast<int64_t>(count < 0 ? 0 : count) * fetched.each;
  return used < fetched.bytes ? used : fetched.bytes;
}

// What a warp takes at a time of one entry: in units of 16 bytes each thread of 32 has four loads in flight. A
// block has few, so that many multiprocessors have loads in flight, and not one after the other.
constexpr int64_t kShareBytes = 2048;
constexpr int64_t kSharesOfBlock = 2;

FASTJAX_DEVICE inline int64_t CountShares(int64_t bytes) { return (bytes + kShareBytes - 1) / kShareBytes; }

template <typename Unit>
FASTJAX_DEVICE inline Unit LoadOnce(const Unit* at) {
  return *at;
}

template <typename Unit>
FASTJAX_DEVICE inline void StoreOnce(Unit* at, const Unit& unit) {
  *at = unit;
}

// Threads side by side; all loads of a thread are in flight before its first store, up to `kHeld` of them.
template <typename Unit, int32_t kHeld>
FASTJAX_DEVICE inline void FetchUnits(const Worker& group, std::byte* dst, const std::byte* src, int64_t bytes) {
  const auto* const from = reinterpret_cast<const Unit*>(src);
  auto* const to = reinterpret_cast<Unit*>(dst);
  const auto units = static_cast<int32_t>(bytes / static_cast<int64_t>(sizeof(Unit)));
  for (int32_t i = group.thread; i < units; i += kHeld * group.threads) {
    Unit held[kHeld] = {};
    FASTJAX_UNROLL
    for (int32_t k = 0; k < kHeld; ++k) {
      if (i + k * group.threads < units) held[k] = LoadOnce(from + i + k * group.threads);
    }
    FASTJAX_UNROLL
    for (int32_t k = 0; k < kHeld; ++k) {
      if (i + k * group.threads < units) StoreOnce(to + i + k * group.threads, held[k]);
    }
  }
}

// In the largest units that both ends and the size allow.
FASTJAX_DEVICE inline void FetchShare(const Worker& group, std::byte* to, const std::byte* from, int64_t bytes) {
  const auto any = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(bytes);
  if (any % sizeof(Word16) == 0) {
    FetchUnits<Word16, 4>(group, to, from, bytes);
  } else if (any % sizeof(uint32_t) == 0) {
    FetchUnits<uint32_t, 8>(group, to, from, bytes);
  } else {
    FetchUnits<uint8_t, 8>(group, to, from, bytes);
  }
}

// The shares of all entries are dealt to the warps round-robin.
FASTJAX_DEVICE inline void Fetch(const Worker& worker, const FetchList& list) {
  // All tables are asked at once.
  int32_t counts[kMaxFetched] = {};
  FASTJAX_UNROLL
  for (int32_t i = 0; i < kMaxFetched; ++i) {
    if (i < list.count) counts[i] = ReadCount(list.entries[i]);
  }
  int64_t used[kMaxFetched] = {};
  int64_t shares = 0;
  FASTJAX_UNROLL
  for (int32_t i = 0; i < kMaxFetched; ++i) {
    if (i < list.count) used[i] = BytesInUse(list.entries[i], counts[i]);
    shares += CountShares(used[i]);
  }
  for (int64_t share = worker.warp; share < shares; share += worker.warps) {
    int32_t number = -1;
    int64_t first = 0;
    int64_t bytes = 0;
    int64_t before = 0;
    FASTJAX_UNROLL
    for (int32_t i = 0; i < kMaxFetched; ++i) {
      if (share >= before && used[i] > 0) {
        number = i;
        first = (share - before) * kShareBytes;
        bytes = used[i] - first;
      }
      before += CountShares(used[i]);
    }
    const Fetched& fetched = list.entries[number];
    FetchShare(worker, fetched.to + first, fetched.from + first, bytes < kShareBytes ? bytes : kShareBytes);
  }
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_FETCH_H_
