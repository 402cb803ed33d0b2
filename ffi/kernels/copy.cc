#include "kernels/copy.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastjax::kernels {
namespace {

#if defined(__SSE2__)
constexpr size_t kLine = 64;

// Plain stores read each destination line before they overwrite it; streamed ones do not, which saves a third of
// the memory traffic of a copy that does not fit in the caches.
void CopyStreamed(std::byte* dst, const std::byte* src, size_t bytes) {
  const size_t misaligned = reinterpret_cast<uintptr_t>(dst) % kLine;
  const size_t head = misaligned == 0 ? 0 : kLine - misaligned;
  if (bytes < head + kLine) {
    std::memcpy(dst, src, bytes);
    return;
  }
  std::memcpy(dst, src, head);
  dst += head;
  src += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, dst += kLine, src += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(src);
    auto* to = reinterpret_cast<__m128i*>(dst);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(dst, src, bytes);
  // Streamed stores are weakly ordered: make them visible before the copy is reported done.
  _mm_sfence();
}
#else
void CopyStreamed(std::byte* dst, const std::byte* src, size_t bytes) { std::memcpy(dst, src, bytes); }
#endif

}  // namespace

void Copy(void* dst, const void* src, size_t bytes, Destination destination) {
  if (destination == Destination::kStreamed) {
    CopyStreamed(static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), bytes);
  } else {
    std::memcpy(dst, src, bytes);
  }
}

}  // namespace fastjax::kernels
