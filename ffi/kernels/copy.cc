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

// Rows may start anywhere (a row of three bfloat16s is six bytes), so elements are loaded bytewise; compilers turn
// this into plain unaligned loads.
template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

template <typename T>
void AddAs(std::byte* dst, const std::byte* src, size_t bytes) {
  for (size_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    Store<T>(dst + i, Load<T>(dst + i) + Load<T>(src + i));
  }
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBF16(uint16_t half) { return FromBits(static_cast<uint32_t>(half) << 16); }

// Round to nearest, ties to even; a NaN keeps its sign and stays quiet.
uint16_t ToBF16(float value) {
  const uint32_t bits = ToBits(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float FromF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1FU) return FromBits(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return FromBits(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  // Subnormal: mantissa · 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * FromBits(0x33800000U);
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t ToF16(float value) {
  const uint32_t bits = ToBits(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // rounds to 65520 or more
  if (magnitude < 0x38800000U) {
    // Subnormal result: adding 2^-1 · 2^0 lines the 10 bits up at the end of a float's mantissa, rounded to even.
    const float shifted = FromBits(magnitude) + FromBits(0x3F000000U);
    return static_cast<uint16_t>(sign | (ToBits(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

template <float (*From)(uint16_t), uint16_t (*To)(float)>
void AddHalves(std::byte* dst, const std::byte* src, size_t bytes) {
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    Store<uint16_t>(dst + i, To(From(Load<uint16_t>(dst + i)) + From(Load<uint16_t>(src + i))));
  }
}

}  // namespace

void Copy(void* dst, const void* src, size_t bytes, Destination destination) {
  if (destination == Destination::kStreamed) {
    CopyStreamed(static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), bytes);
  } else {
    std::memcpy(dst, src, bytes);
  }
}

size_t ElementBytes(ElementKind kind) {
  switch (kind) {
    case ElementKind::kF16:
    case ElementKind::kBF16:
      return 2;
    case ElementKind::kF32:
      return 4;
    case ElementKind::kF64:
      return 8;
    case ElementKind::kOpaque:
      break;
  }
  return 1;
}

void Add(void* dst, const void* src, size_t bytes, ElementKind kind) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  switch (kind) {
    case ElementKind::kF16:
      return AddHalves<FromF16, ToF16>(to, from, bytes);
    case ElementKind::kBF16:
      return AddHalves<FromBF16, ToBF16>(to, from, bytes);
    case ElementKind::kF32:
      return AddAs<float>(to, from, bytes);
    case ElementKind::kF64:
      return AddAs<double>(to, from, bytes);
    case ElementKind::kOpaque:
      return;
  }
}

}  // namespace fastjax::kernels
