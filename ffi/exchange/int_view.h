// Declares IntView, which reads offsets and sizes of any integer type.
#ifndef FASTJAX_EXCHANGE_INT_VIEW_H_
#define FASTJAX_EXCHANGE_INT_VIEW_H_

#include <cstdint>
#include <cstring>
#include <limits>

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
    switch (kind) {
      case IntKind::kS8:
        return Widen<int8_t>(out);
      case IntKind::kS16:
        return Widen<int16_t>(out);
      case IntKind::kS32:
        return Widen<int32_t>(out);
      case IntKind::kS64:
        return Widen<int64_t>(out);
      case IntKind::kU8:
        return Widen<uint8_t>(out);
      case IntKind::kU16:
        return Widen<uint16_t>(out);
      case IntKind::kU32:
        return Widen<uint32_t>(out);
      case IntKind::kU64:
        return Widen<uint64_t>(out);
    }
  }

 private:
  template <typename T>
  void Widen(int64_t* out) const {
    const auto* values = static_cast<const T*>(data);
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (sizeof(T) == 8) {
        constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
        out[i] = static_cast<uint64_t>(values[i]) > kMax && values[i] > 0 ? static_cast<int64_t>(kMax)
                                                                          : static_cast<int64_t>(values[i]);
      } else {
        out[i] = static_cast<int64_t>(values[i]);
      }
    }
  }
};

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_INT_VIEW_H_
