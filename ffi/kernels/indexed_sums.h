// Sums of rows that were returned, by the row of the result that each was sent of: of each row of the result, a list
// says which entries of the exchange are added up for it, and in which order.
#ifndef FASTJAX_KERNELS_INDEXED_SUMS_H_
#define FASTJAX_KERNELS_INDEXED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/elements.h"
#include "kernels/moves.h"
#include "kernels/sum.h"

namespace fastjax::kernels {

// Rows that were returned for the entries [begin, begin + rows), one behind the other, each with a factor. Like rows,
// factors may lie at any address; null for 1.
struct Slice {
  int64_t begin;
  int64_t rows;
  const std::byte* row;
  const std::byte* factor;
};

// Row r of the result becomes the sum of what was returned for entries[starts[r]] to entries[starts[r + 1] - 1]. It
// stays what it is if nothing was. Slices are in order of `begin`, there is one at least, and they do not overlap.
struct IndexedSum {
  std::byte* result;
  int64_t rows;
  int64_t elements;  // of a row
  const int32_t* starts;
  const int32_t* entries;
  int32_t num_entries;
  const Slice* slices;
  int64_t num_slices;
  bool aligned;  // All rows that were returned, and all of the result, begin and end at multiples of 16.
};

// Whether a sum is aligned; `slices` are its own, where the host has them.
inline bool IsAligned(const IndexedSum& sum, const Slice* slices, SumTypes types) {
  const auto row_elements = static_cast<size_t>(sum.elements);
  uintptr_t any = reinterpret_cast<uintptr_t>(sum.result) | row_elements * ElementBytes(types.element) |
                  row_elements * ElementBytes(types.sum);
  for (int64_t i = 0; i < sum.num_slices; ++i) any |= reinterpret_cast<uintptr_t>(slices[i].row);
  return any % sizeof(Word16) == 0;
}

// What was returned for an entry: null where nothing was.
template <typename Sum>
struct Returned {
  const std::byte* row;
  typename Sum::Stored factor;
};

// Lists are taken for what they are: an entry in no slice is one for which nothing was returned.
template <typename Element, typename Sum>
FASTJAX_DEVICE inline Returned<Sum> FindReturned(const IndexedSum& sum, int64_t entry) {
  using Wide = typename Sum::Stored;
  Returned<Sum> found = {nullptr, Wide{1}};
  const Slice& slice = sum.slices[FindRun(sum.slices, sum.num_slices, entry)];
  const int64_t place = entry - slice.begin;
  if (place < 0 || place >= slice.rows) return found;
  found.row = slice.row + place * sum.elements * static_cast<int64_t>(sizeof(typename Element::Stored));
  if (slice.factor != nullptr) __builtin_memcpy(&found.factor, slice.factor + place * sizeof(Wide), sizeof(Wide));
  return found;
}

// The elements of a word that begin a row or follow other words of it; `count` of them are the row's. All of a row that
// is aligned are whole words.
template <typename Stored, bool kAligned>
FASTJAX_DEVICE inline Word16 LoadElements(const std::byte* from, int32_t count) {
  if constexpr (kAligned) {
    return LoadOnce(reinterpret_cast<const Word16*>(from));
  } else {
    constexpr auto kElements = static_cast<int32_t>(sizeof(Word16) / sizeof(Stored));
    Stored values[kElements] = {};
    FASTJAX_UNROLL
    for (int32_t i = 0; i < kElements; ++i) {
      if (i < count) __builtin_memcpy(&values[i], from + i * sizeof(Stored), sizeof(Stored));
    }
    Word16 word;
    __builtin_memcpy(&word, values, sizeof(word));
    return word;
  }
}

template <typename Element, typename Sum, int32_t kElements>
FASTJAX_DEVICE inline void AddElements(const Word16& word, typename Sum::Stored factor,
                                       typename Sum::Stored (&sums)[kElements]) {
  typename Element::Stored values[kElements];
  __builtin_memcpy(values, &word, sizeof(values));
  FASTJAX_UNROLL
  for (int32_t i = 0; i < kElements; ++i) {
    sums[i] = Sum::Sum(sums[i], Scaled(Terms<Element, Sum>::Of(values[i]), factor));
  }
}

template <bool kAligned, typename Wide, int32_t kElements>
FASTJAX_DEVICE inline void StoreElements(std::byte* to, const Wide (&sums)[kElements], int32_t count) {
  if constexpr (kAligned) {
    constexpr auto kWords = static_cast<int32_t>(kElements * sizeof(Wide) / sizeof(Word16));
    Word16 words[kWords];
    __builtin_memcpy(words, sums, sizeof(words));
    FASTJAX_UNROLL
    for (int32_t i = 0; i < kWords; ++i) StoreOnce(reinterpret_cast<Word16*>(to) + i, words[i]);
  } else {
    FASTJAX_UNROLL
    for (int32_t i = 0; i < kElements; ++i) {
      if (i < count) __builtin_memcpy(to + i * sizeof(Wide), &sums[i], sizeof(Wide));
    }
  }
}

// So many rows a thread looks for at once, before it loads from any; one by one where it takes many loads for each.
// With four, the registers that widen float16 do not last.
template <typename Element, bool kAligned>
constexpr int32_t kHeldRows = !kAligned                      ? 1
                              : std::is_same_v<Element, F16> ? 2
                                                             : 4;

// Sums some elements of a row of the result, from the `at`-th on.
template <typename Element, typename Sum, bool kAligned>
FASTJAX_DEVICE inline void SumElements(const IndexedSum& sum, int64_t row, int64_t at) {
  using Stored = typename Element::Stored;
  using Wide = typename Sum::Stored;
  constexpr auto kElements = static_cast<int32_t>(sizeof(Word16) / sizeof(Stored));
  constexpr int32_t kHeld = kHeldRows<Element, kAligned>;
  const int32_t count = sum.elements - at < kElements ? static_cast<int32_t>(sum.elements - at) : kElements;
  const int32_t first = sum.starts[row] < 0 ? 0 : sum.starts[row];
  const int32_t last = sum.starts[row + 1] < sum.num_entries ? sum.starts[row + 1] : sum.num_entries;
  const int32_t* entries = sum.entries + first;
  Wide sums[kElements] = {};
  bool any = false;
  for (int32_t left = last > first ? last - first : 0; left > 0; left -= kHeld, entries += kHeld) {
    Returned<Sum> found[kHeld];
    FASTJAX_UNROLL
    for (int32_t k = 0; k < kHeld; ++k) {
      found[k] = k < left ? FindReturned<Element, Sum>(sum, entries[k]) : Returned<Sum>{nullptr, Wide{1}};
    }
    Word16 held[kHeld] = {};
    FASTJAX_UNROLL
    for (int32_t k = 0; k < kHeld; ++k) {
      if (found[k].row != nullptr) {
        held[k] = LoadElements<Stored, kAligned>(found[k].row + at * static_cast<int64_t>(sizeof(Stored)), count);
      }
    }
    FASTJAX_UNROLL
    for (int32_t k = 0; k < kHeld; ++k) {
      if (found[k].row == nullptr) continue;
      AddElements<Element, Sum>(held[k], found[k].factor, sums);
      any = true;
    }
  }
  if (!any) return;
  StoreElements<kAligned>(sum.result + (row * sum.elements + at) * static_cast<int64_t>(sizeof(Wide)), sums, count);
}

// Threads side by side sum what lies side by side; those of a warp share a row, or groups of them have short rows of
// their own.
template <typename Element, typename Sum, bool kAligned>
FASTJAX_DEVICE inline void SumShare(const Worker& worker, const IndexedSum& sum) {
  constexpr auto kElements = static_cast<int64_t>(sizeof(Word16) / sizeof(typename Element::Stored));
  const int64_t words = (sum.elements + kElements - 1) / kElements;
  const int64_t threads = words <= kGroupThreads ? kGroupThreads : worker.threads;
  const int64_t groups = worker.threads / threads;
  const int64_t parts = (words + threads - 1) / threads;  // of a row
  const int64_t step = worker.warps * groups;
  for (int64_t i = worker.warp * groups + worker.thread / threads; i < sum.rows * parts; i += step) {
    const int64_t word = i % parts * threads + worker.thread % threads;
    if (word < words) SumElements<Element, Sum, kAligned>(sum, i / parts, word * kElements);
  }
}

// All of a warp's share of the sums, which are made as kernels::AddUp makes them, one entry after the other.
template <typename Element, typename Sum>
FASTJAX_DEVICE inline void SumIndexed(const Worker& worker, const IndexedSum& sum) {
  if (sum.aligned) {
    SumShare<Element, Sum, true>(worker, sum);
  } else {
    SumShare<Element, Sum, false>(worker, sum);
  }
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_INDEXED_SUMS_H_
