#include "kernels/sum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/elements.h"

namespace fastjax::kernels {
namespace {

// Elements that are summed at a time: few enough to stay in the first cache while all rows are added to them.
constexpr size_t kBlock = 1024;

// Rows may start anywhere (a row of three bfloat16s is six bytes), so elements are loaded bytewise; compilers turn this
// into plain unaligned loads.
template <typename T>
T Load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

// sum[i] += scaled(row[i]).
template <typename Element, typename Sum, typename Scale>
void AddBlock(typename Sum::Stored* sum, const std::byte* row, size_t elements, Scale scaled) {
  for (size_t i = 0; i < elements; ++i) {
    const auto element = Load<typename Element::Stored>(row, i);
    sum[i] = Sum::Sum(sum[i], scaled(Terms<Element, Sum>::Of(element)));
  }
}

template <typename Element, typename Sum>
void SumAs(std::byte* result, size_t elements, const Summand* rows, size_t count) {
  using Wide = typename Sum::Stored;
  Wide sum[kBlock];
  for (size_t first = 0; first < elements; first += kBlock) {
    const size_t block = std::min(kBlock, elements - first);
    std::fill_n(sum, block, Wide{0});
    for (size_t i = 0; i < count; ++i) {
      const std::byte* const row = rows[i].row + first * sizeof(typename Element::Stored);
      if (rows[i].factor == nullptr) {
        AddBlock<Element, Sum>(sum, row, block, [](Wide value) { return value; });
      } else {
        const auto factor = Load<Wide>(rows[i].factor, 0);
        AddBlock<Element, Sum>(sum, row, block, [factor](Wide value) { return Scaled(value, factor); });
      }
    }
    std::memcpy(result + first * sizeof(Wide), sum, block * sizeof(Wide));
  }
}

}  // namespace

bool CanSum(SumTypes types) {
  return VisitSum(types, [](auto /*element*/, auto /*sum*/) {});
}

bool CanScale(SumTypes types) {
  return CanSum(types) && (types.sum == ElementKind::kF32 || types.sum == ElementKind::kF64);
}

void AddUp(std::byte* result, size_t elements, SumTypes types, const Summand* rows, size_t count) {
  VisitSum(types,
           [&](auto element, auto sum) { SumAs<decltype(element), decltype(sum)>(result, elements, rows, count); });
}

}  // namespace fastjax::kernels
