// Sums of two rows.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_SUMS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_SUMS_H_

#include <cstddef>

#include "kernels/sum.h"

namespace fastjax::test {

// dst[i] = 0 + dst[i] + src[i], of whole elements.
inline void AddTo(void* dst, const void* src, size_t bytes, kernels::ElementKind kind) {
  auto* const to = static_cast<std::byte*>(dst);
  const kernels::Summand rows[] = {{to, nullptr}, {static_cast<const std::byte*>(src), nullptr}};
  kernels::AddUp(to, bytes / kernels::ElementBytes(kind), {kind, kind}, rows, 2);
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_SUMS_H_
