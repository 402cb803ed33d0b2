// Declares Numbering, which numbers values by their order.
#ifndef FASTJAX_EXECUTION_NUMBERING_H_
#define FASTJAX_EXECUTION_NUMBERING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax {

// Gives numbers, in order, to those values that are in use: what a plan says of how many there are must not decide how
// much memory is taken. Plans list what is of one stage together, so a value is mostly the one before it.
class Numbering {
 public:
  void Clear() { values_.clear(); }
  void Add(int32_t value) {
    if (values_.empty() || values_.back() != value) values_.push_back(value);
  }
  // To be called after all values have been added.
  void Number() {
    std::sort(values_.begin(), values_.end());
    values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
    last_ = 0;
  }
  // Returns the number of a value, which has been added.
  int32_t NumberOf(int32_t value) {
    if (values_[last_] != value) {
      last_ = static_cast<size_t>(std::lower_bound(values_.begin(), values_.end(), value) - values_.begin());
    }
    return static_cast<int32_t>(last_);
  }
  const std::vector<int32_t>& values() const { return values_; }
  int32_t count() const { return static_cast<int32_t>(values_.size()); }

 private:
  std::vector<int32_t> values_;
  size_t last_ = 0;  // the number that was asked for last
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_NUMBERING_H_
