// Random numbers and bytes, the same with every standard library.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_RANDOM_H_
#define FASTJAX_TESTS_CPP_SUPPORT_RANDOM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace fastjax::test {

using Random = std::mt19937_64;

inline int64_t Below(Random* random, int64_t limit) {
  return static_cast<int64_t>((*random)() % static_cast<uint64_t>(limit));
}

inline std::vector<std::byte> RandomBytes(size_t count, Random* random) {
  std::vector<std::byte> bytes(count);
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = (*random)();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), count - at));
  }
  return bytes;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_RANDOM_H_
