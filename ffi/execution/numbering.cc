#include "execution/numbering.h"

#include <algorithm>

namespace fastjax {

void Numbering::Clear() {
  values_.clear();
  ++use_;
}

void Numbering::Add(int32_t value) {
  Known& known = known_[PlaceOf(value)];
  if (known.use == use_ && known.value == value) return;
  known = {value, 0, use_};
  values_.push_back(value);
}

void Numbering::Number() {
  std::sort(values_.begin(), values_.end());
  values_.erase(std::unique(values_.begin(), values_.end()), values_.end());
  for (size_t i = 0; i < values_.size(); ++i) {
    known_[PlaceOf(values_[i])] = {values_[i], static_cast<int32_t>(i), use_};
  }
}

int32_t Numbering::NumberOf(int32_t value) const {
  const Known& known = known_[PlaceOf(value)];
  if (known.value == value) return known.number;
  return static_cast<int32_t>(std::lower_bound(values_.begin(), values_.end(), value) - values_.begin());
}

}  // namespace fastjax
