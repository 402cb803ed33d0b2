#include "kernels/sum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/elements.h"

namespace fastjax::kernels {
namespace {

// Elements that are summed at a time: few enough to stay in the first cache while all rows are added to them.
constexpr size_t kBlock = 1024;

// The value of an element that is summed in its own type.
template <typename T>
T Same(T value) {
  return value;
}

// Rows may start anywhere (a row of three bfloat16s is six bytes), so elements are loaded bytewise; compilers turn this
// into plain unaligned loads.
template <typename T>
T Load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

// sum[i] += value(row[i]).
template <typename Sum, typename Stored, typename Value>
void AddBlock(typename Sum::Stored* sum, const std::byte* row, size_t elements, Value value) {
  for (size_t i = 0; i < elements; ++i) sum[i] = Sum::Sum(sum[i], value(Load<Stored>(row, i)));
}

template <typename Sum, typename Stored, typename Sum::Stored (*kWiden)(Stored), bool kScales>
void SumAs(std::byte* result, size_t elements, const Summand* rows, size_t count) {
  using Wide = typename Sum::Stored;
  Wide sum[kBlock];
  for (size_t first = 0; first < elements; first += kBlock) {
    const size_t block = std::min(kBlock, elements - first);
    std::fill_n(sum, block, Wide{0});
    for (size_t i = 0; i < count; ++i) {
      const std::byte* const row = rows[i].row + first * sizeof(Stored);
      if constexpr (kScales) {
        if (rows[i].factor != nullptr) {
          const auto factor = Load<Wide>(rows[i].factor, 0);
          AddBlock<Sum, Stored>(sum, row, block, [factor](Stored value) { return kWiden(value) * factor; });
          continue;
        }
      }
      AddBlock<Sum, Stored>(sum, row, block, [](Stored value) { return kWiden(value); });
    }
    std::memcpy(result + first * sizeof(Wide), sum, block * sizeof(Wide));
  }
}

}  // namespace

bool CanSum(SumTypes types) {
  if (types.element == ElementKind::kOpaque) return false;
  const bool is_half = types.element == ElementKind::kF16 || types.element == ElementKind::kBF16;
  return types.element == types.sum || (is_half && types.sum == ElementKind::kF32);
}

bool CanScale(SumTypes types) {
  return CanSum(types) && (types.sum == ElementKind::kF32 || types.sum == ElementKind::kF64);
}

void AddUp(std::byte* result, size_t elements, SumTypes types, const Summand* rows, size_t count) {
  const bool own = types.element == types.sum;
  switch (types.element) {
    case ElementKind::kF16:
      return own ? SumAs<F16, uint16_t, Same, false>(result, elements, rows, count)
                 : SumAs<F32, uint16_t, FromF16, true>(result, elements, rows, count);
    case ElementKind::kBF16:
      return own ? SumAs<BF16, uint16_t, Same, false>(result, elements, rows, count)
                 : SumAs<F32, uint16_t, FromBF16, true>(result, elements, rows, count);
    case ElementKind::kF32:
      return SumAs<F32, float, Same, true>(result, elements, rows, count);
    case ElementKind::kF64:
      return SumAs<F64, double, Same, true>(result, elements, rows, count);
    case ElementKind::kOpaque:
      return;
  }
}

}  // namespace fastjax::kernels
