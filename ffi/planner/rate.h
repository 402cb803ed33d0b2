// Times, in integers.
#ifndef FASTJAX_PLANNER_RATE_H_
#define FASTJAX_PLANNER_RATE_H_

#include <algorithm>
#include <cstdint>

namespace fastjax::planner {

// Wide enough for 2^62 rows of any size that is allowed, summed over all stages.
__extension__ using Wide = __int128;
using Picoseconds = Wide;

inline Picoseconds FromNanoseconds(int64_t nanoseconds) { return Picoseconds{nanoseconds} * 1000; }
inline double ToSeconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

inline int64_t Saturated(Wide value) {
  constexpr Wide kMost = int64_t{1} << 62;
  return static_cast<int64_t>(value > kMost ? kMost : value);
}

// a * b / c of numbers that are not negative, c positive, rounded down.
inline int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  constexpr int64_t kHalf = int64_t{1} << 31;
  return a < kHalf && b < kHalf ? a * b / c : Saturated(Wide{a} * b / c);
}

// How long rows take at a bandwidth: a multiplication instead of a division for each question.
class Rate {
 public:
  Rate() = default;
  // Bandwidth 0 counts as the slowest there is.
  Rate(int64_t row_bytes, int64_t bandwidth) {
    const Wide bytes = Wide{row_bytes} * 1'000'000'000'000;
    for (shift_ = kMostFineBits; shift_ > 0; shift_ -= kMostFineBits / 2) {
      if ((bytes << shift_) / std::max<int64_t>(bandwidth, 1) < Wide{1} << 60) break;
    }
    multiplier_ = Saturated((bytes << shift_) / std::max<int64_t>(bandwidth, 1));
  }

  Picoseconds Time(int64_t rows) const { return (Wide{rows} * multiplier_) >> shift_; }
  // Rows that fit into a time, at least; up to 2^62.
  int64_t Rows(Picoseconds time) const { return multiplier_ == 0 ? int64_t{1} << 62 : Quotient(time); }

 private:
  static constexpr int kMostFineBits = 40;

  int64_t Quotient(Picoseconds time) const {
    const Wide most = Wide{1} << (126 - shift_);
    return Saturated((std::min(time, most) << shift_) / multiplier_);
  }

  int64_t multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_RATE_H_
