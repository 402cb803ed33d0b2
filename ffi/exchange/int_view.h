// Declares IntView, which reads offsets and sizes of any integer type.
#ifndef FASTJAX_EXCHANGE_INT_VIEW_H_
#define FASTJAX_EXCHANGE_INT_VIEW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace fastjax {

enum class IntKind : uint8_t { kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64 };

// Kinds are in order of width, signed before unsigned.
inline int64_t IntBytes(IntKind kind) { return int64_t{1} << (static_cast<int>(kind) % 4); }

struct IntView {
  const void* data = nullptr;
  int64_t size = 0;
  IntKind kind = IntKind::kS32;

  // Values that int64 cannot hold become its largest, which every range check refuses.
  void CopyTo(int64_t* out) const {
    // In the order of kinds.
    constexpr void (IntView::* kWiden[])(int64_t*) const = {
        &IntView::Widen<int8_t>,  &IntView::Widen<int16_t>,  &IntView::Widen<int32_t>,  &IntView::Widen<int64_t>,
        &IntView::Widen<uint8_t>, &IntView::Widen<uint16_t>, &IntView::Widen<uint32_t>, &IntView::Widen<uint64_t>};
    (this->*kWiden[static_cast<size_t>(kind)])(out);
  }

 private:
  template <typename T>
  void Widen(int64_t* out) const {
    const auto* values = static_cast<const T*>(data);
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (std::is_same_v<T, uint64_t>) {
        out[i] = static_cast<int64_t>(std::min(values[i], uint64_t{std::numeric_limits<int64_t>::max()}));
      } else {
        out[i] = values[i];
      }
    }
  }
};

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_INT_VIEW_H_
