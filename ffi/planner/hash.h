// 64-bit hashes of integer arrays: equal on every host, fast, not cryptographic.
#ifndef FASTJAX_PLANNER_HASH_H_
#define FASTJAX_PLANNER_HASH_H_

#include <cstdint>
#include <cstring>

namespace fastjax::planner {

inline constexpr uint64_t kHashOdd = 0x9E3779B97F4A7C15;

inline uint64_t HashMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Five accumulators, because a multiplication waits for the one before it on its accumulator only, and registers hold
// five; two values for each multiplication, which takes the longest, and of whose product both halves count, as in Wang
// Yi's wyhash. A change of `second` moves the product by multiples of the accumulator, which is as good as random. One
// of `first` moves it by multiples of nearly the golden ratio, which lie too far apart for a small change of the next
// step's value to make up for it.
class StripedHash {
 public:
  explicit StripedHash(uint64_t seed) {
    for (uint64_t i = 0; i < kAccumulators; ++i) accumulators_[i] = HashMix(seed + i * kHashOdd);
  }

  // value(i) for i in [0, count).
  template <typename Value>
  uint64_t Finish(int64_t count, Value value) {
    int64_t i = 0;
    for (; i + 2 * kAccumulators <= count; i += 2 * kAccumulators) {
      for (int64_t at = 0; at < kAccumulators; ++at) Step(at, value(i + 2 * at), value(i + 2 * at + 1));
    }
    for (int64_t at = 0; i < count; i += 2, ++at) Step(at, value(i), i + 1 < count ? value(i + 1) : 0);
    uint64_t hash = static_cast<uint64_t>(count);
    for (uint64_t accumulator : accumulators_) hash = HashMix(hash ^ accumulator) + kHashOdd;
    return HashMix(hash);
  }

 private:
  __extension__ using Product = unsigned __int128;
  static constexpr int64_t kAccumulators = 5;

  void Step(int64_t at, uint64_t first, uint64_t second) {
    const Product product = static_cast<Product>(accumulators_[at] ^ first) * (second ^ kHashOdd);
    accumulators_[at] = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  uint64_t accumulators_[kAccumulators];
};

inline uint64_t HashInt64(const int64_t* values, int64_t count, uint64_t seed) {
  return StripedHash(seed).Finish(count, [&](int64_t i) { return static_cast<uint64_t>(values[i]); });
}

// Two values, the first in the low half, in one load where bytes lie like that anyway.
inline uint64_t LoadPair(const int32_t* values) {
  uint64_t pair;
  std::memcpy(&pair, values, sizeof(pair));
  constexpr bool kLowFirst = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
  return kLowFirst ? pair : pair << 32 | pair >> 32;
}

inline uint64_t HashInt32(const int32_t* values, int64_t count, uint64_t seed) {
  const uint64_t last = count % 2 != 0 ? static_cast<uint32_t>(values[count - 1]) : uint64_t{1} << 32;
  return StripedHash(HashMix(seed ^ last)).Finish(count / 2, [&](int64_t i) { return LoadPair(values + 2 * i); });
}

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_HASH_H_
