// Sets of small integers, as bits of 64-bit words.
#ifndef FASTJAX_PLANNER_BITS_H_
#define FASTJAX_PLANNER_BITS_H_

#include <cstddef>
#include <cstdint>

namespace fastjax::planner {

inline int32_t BitWords(int32_t size) { return (size + 63) / 64; }
inline uint64_t BitOf(int32_t i) { return uint64_t{1} << (i % 64); }
inline void SetBit(uint64_t* set, int32_t i) { set[i / 64] |= BitOf(i); }
inline void ClearBit(uint64_t* set, int32_t i) { set[i / 64] &= ~BitOf(i); }

// Position of the lowest bit; bits is not 0.
inline int32_t LowestBit(uint64_t bits) { return __builtin_ctzll(bits); }

// Smallest element of both sets, or -1.
inline int32_t FirstCommon(const uint64_t* a, const uint64_t* b, int32_t words) {
  for (int32_t word = 0; word < words; ++word) {
    const uint64_t both = a[word] & b[word];
    if (both != 0) return word * 64 + LowestBit(both);
  }
  return -1;
}

// Visits the elements, ascending.
template <typename Visit>
void ForEachBit(const uint64_t* set, int32_t words, Visit visit) {
  for (int32_t word = 0; word < words; ++word) {
    for (uint64_t bits = set[word]; bits != 0; bits &= bits - 1) visit(word * 64 + LowestBit(bits));
  }
}

// Visits the elements of both sets, ascending, and removes them from b.
template <typename Visit>
void TakeCommon(const uint64_t* a, uint64_t* b, int32_t words, Visit visit) {
  for (int32_t word = 0; word < words; ++word) {
    uint64_t both = a[word] & b[word];
    b[word] &= ~both;
    for (; both != 0; both &= both - 1) visit(word * 64 + LowestBit(both));
  }
}

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_BITS_H_
