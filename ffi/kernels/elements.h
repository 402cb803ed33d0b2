// Element types that gradients come in, and their sums: the same bits on the host and on every GPU, but for NaNs, whose
// sign and payload are the processor's.
//
// memcpy is the compilers' own, since HIP's headers come too late to declare one for GPUs.
#ifndef FASTJAX_KERNELS_ELEMENTS_H_
#define FASTJAX_KERNELS_ELEMENTS_H_

#include <cstdint>

#include "kernels/sum.h"
#include "kernels/worker.h"

namespace fastjax::kernels {

FASTJAX_DEVICE inline float FromBits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

FASTJAX_DEVICE inline uint32_t ToBits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

FASTJAX_DEVICE inline float FromBF16(uint16_t half) { return FromBits(static_cast<uint32_t>(half) << 16); }

// Round to nearest, ties to even; a NaN keeps its sign and stays quiet.
FASTJAX_DEVICE inline uint16_t ToBF16(float value) {
  const uint32_t bits = ToBits(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

FASTJAX_DEVICE inline float FromF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1FU) return FromBits(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return FromBits(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  // Subnormal: mantissa · 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * FromBits(0x33800000U);
  return sign != 0 ? -magnitude : magnitude;
}

FASTJAX_DEVICE inline uint16_t ToF16(float value) {
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

// Each: how an element is stored, and the sum of two, rounded to it. Complex numbers are pairs of their real kind.

struct F16 {
  using Stored = uint16_t;
  FASTJAX_DEVICE static Stored Sum(Stored a, Stored b) { return ToF16(FromF16(a) + FromF16(b)); }
};

struct BF16 {
  using Stored = uint16_t;
  FASTJAX_DEVICE static Stored Sum(Stored a, Stored b) { return ToBF16(FromBF16(a) + FromBF16(b)); }
};

struct F32 {
  using Stored = float;
  FASTJAX_DEVICE static Stored Sum(Stored a, Stored b) { return a + b; }
};

struct F64 {
  using Stored = double;
  FASTJAX_DEVICE static Stored Sum(Stored a, Stored b) { return a + b; }
};

// How elements of one type are summed in another: `Of` is their value, exactly, and `Scaled` what it is times a factor,
// rounded. Sums of 16 bits have no factors.
template <typename Element, typename Sum>
struct Terms;
template <typename Element>
struct Terms<Element, Element> {
  using Wide = typename Element::Stored;
  FASTJAX_DEVICE static Wide Of(Wide value) { return value; }
};
template <>
struct Terms<F16, F32> {
  FASTJAX_DEVICE static float Of(uint16_t value) { return FromF16(value); }
};
template <>
struct Terms<BF16, F32> {
  FASTJAX_DEVICE static float Of(uint16_t value) { return FromBF16(value); }
};

FASTJAX_DEVICE inline uint16_t Scaled(uint16_t value, uint16_t /*factor*/) { return value; }
FASTJAX_DEVICE inline float Scaled(float value, float factor) { return value * factor; }
FASTJAX_DEVICE inline double Scaled(double value, double factor) { return value * factor; }

// Calls visit(Element(), Sum()) if elements of these types can be summed; returns whether they can.
template <typename Visit>
bool VisitSum(SumTypes types, Visit visit) {
  const auto are = [&](ElementKind element, ElementKind sum) { return types.element == element && types.sum == sum; };
  if (are(ElementKind::kF16, ElementKind::kF16)) {
    visit(F16(), F16());
  } else if (are(ElementKind::kF16, ElementKind::kF32)) {
    visit(F16(), F32());
  } else if (are(ElementKind::kBF16, ElementKind::kBF16)) {
    visit(BF16(), BF16());
  } else if (are(ElementKind::kBF16, ElementKind::kF32)) {
    visit(BF16(), F32());
  } else if (are(ElementKind::kF32, ElementKind::kF32)) {
    visit(F32(), F32());
  } else if (are(ElementKind::kF64, ElementKind::kF64)) {
    visit(F64(), F64());
  } else {
    return false;
  }
  return true;
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_ELEMENTS_H_
