// What a random problem is drawn from: an endless random sequence, or the bytes a fuzzer gives.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastjax::test {

// Both kinds decode the same bytes to the same choices, so the bytes of a random problem are an input for the fuzzer.
// Distributions of the standard library differ from one library to the next; these do not.
class Choices {
 public:
  explicit Choices(uint64_t seed) : state_(seed) {}
  // Zeros follow the last byte.
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

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

  // Every byte taken from now on is added to `bytes`.
  void RecordTo(std::vector<uint8_t>* bytes) { record_ = bytes; }

 private:
  uint64_t Take(int32_t bytes) {
    const uint64_t value = data_ == nullptr ? Random() & (~uint64_t{0} >> (64 - 8 * bytes)) : Read(bytes);
    if (record_ != nullptr) {
      for (int32_t i = 0; i < bytes; ++i) record_->push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
    return value;
  }

  uint64_t Read(int32_t bytes) {
    uint64_t value = 0;
    for (int32_t i = 0; i < bytes && used_ < size_; ++i) value |= uint64_t{data_[used_++]} << (8 * i);
    return value;
  }

  // SplitMix64, Vigna.
  uint64_t Random() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

  uint64_t state_ = 0;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
  std::vector<uint8_t>* record_ = nullptr;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CHOICES_H_
