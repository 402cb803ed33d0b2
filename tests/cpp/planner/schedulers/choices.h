// What a random problem is drawn from: an endless random sequence.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastjax::test {

// Distributions of the standard library differ from one library to the next; these do not.
class Choices {
 public:
  explicit Choices(uint64_t seed) : state_(seed) {}

  // A number below n, which is positive: of as few bytes as hold it.
  int64_t Below(int64_t n) {
    int32_t bytes = 1;
    while (bytes < 8 && (static_cast<uint64_t>(n - 1) >> (8 * bytes)) != 0) ++bytes;
    return static_cast<int64_t>(Take(bytes) % static_cast<uint64_t>(n));
  }
  bool Percent(int64_t chance) { return Below(100) < chance; }
  uint64_t Seed() { return Take(8); }

  template <typename T, size_t kSize>
  T Pick(const T (&list)[kSize]) {
    return list[Below(kSize)];
  }

  // The numbers below `count` in any order.
  std::vector<int32_t> Shuffled(int32_t count) {
    std::vector<int32_t> order(count);
    for (int32_t i = 0; i < count; ++i) {
      order[i] = i;
      std::swap(order[i], order[Below(i + 1)]);
    }
    return order;
  }

 private:
  uint64_t Take(int32_t bytes) { return Random() & (~uint64_t{0} >> (64 - 8 * bytes)); }

  // SplitMix64, Vigna.
  uint64_t Random() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_
