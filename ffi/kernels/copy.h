// Row kernels of the CPU backends.
#ifndef FASTJAX_KERNELS_COPY_H_
#define FASTJAX_KERNELS_COPY_H_

#include <cstddef>
#include <cstdint>

namespace fastjax::kernels {

// How the destination of a copy will be used next. A streamed destination bypasses the caches: right for data
// larger than they are, wrong for rows that the next step reads again.
enum class Destination : uint8_t { kCached, kStreamed };

void Copy(void* dst, const void* src, size_t bytes, Destination destination);

// Element types that gradients come in, for rows that land on each other and are summed.
enum class ElementKind : uint8_t { kOpaque, kF16, kBF16, kF32, kF64 };

inline size_t ElementBytes(ElementKind kind) {
  constexpr size_t kBytes[] = {1, 2, 2, 4, 8};  // in the order of kinds
  return kBytes[static_cast<size_t>(kind)];
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_COPY_H_
