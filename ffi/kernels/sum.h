// Sums of rows on the host, whose elements may be summed in a wider type than their own.
#ifndef FASTJAX_KERNELS_SUM_H_
#define FASTJAX_KERNELS_SUM_H_

#include <cstddef>

#include "kernels/copy.h"

namespace fastjax::kernels {

// A row that is to be summed, and what it is multiplied by before: one number of the type of sums, or null for 1. Both
// may lie at any address.
struct Summand {
  const std::byte* row;
  const std::byte* factor;
};

// The types of a sum.
struct SumTypes {
  ElementKind element;  // of rows
  ElementKind sum;      // of the result
};

// Whether rows of these types can be summed: in their own type, or narrow ones in float.
bool CanSum(SumTypes types);
// Whether there may be factors: not for results of 16 bits.
bool CanScale(SumTypes types);

// Writes the sum of `count` rows, from 0 on in their order. Each product and each sum is rounded to the type of the
// result. Complex numbers are pairs of their real kind.
void AddUp(std::byte* result, size_t elements, SumTypes types, const Summand* rows, size_t count);

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_SUM_H_
