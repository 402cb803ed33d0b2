// Row kernels: copies touch nothing else, and sums are those of exact arithmetic, rounded once.
#include "kernels/copy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/random.h"
#include "support/sums.h"

namespace fastjax::test {
namespace {

using kernels::Destination;
using kernels::ElementKind;

constexpr size_t kLine = 64;
constexpr ElementKind kKinds[] = {ElementKind::kOpaque, ElementKind::kF16, ElementKind::kBF16, ElementKind::kF32,
                                  ElementKind::kF64};

size_t Misaligned(const std::byte* at, size_t wanted) {
  return (kLine + wanted - reinterpret_cast<uintptr_t>(at) % kLine) % kLine;
}

// Copies from every wanted source alignment to every destination alignment, and looks at all of both buffers.
void CheckCopies(size_t bytes, size_t source_alignments, Destination destination, std::mt19937_64* random) {
  const size_t room = bytes + 4 * kLine;
  const std::vector<std::byte> source = RandomBytes(room, random);
  const std::vector<std::byte> kept = source;
  const std::vector<std::byte> before = RandomBytes(room, random);
  std::vector<std::byte> after = before;
  std::vector<std::byte> expected;
  bool as_expected = true;
  for (size_t to = 0; to < kLine; ++to) {
    const size_t dst = kLine + Misaligned(after.data(), to);
    for (size_t from = 0; from < source_alignments; ++from) {
      const size_t src = Misaligned(source.data(), from);
      expected = before;
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(src), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(dst));
      std::copy(before.begin(), before.end(), after.begin());
      kernels::Copy(after.data() + dst, source.data() + src, bytes, destination);
      as_expected = as_expected && after == expected;
    }
  }
  CHECK(as_expected);
  CHECK(source == kept);
}

TEST(Copy) {
  std::mt19937_64 random(1);
  for (const Destination destination : {Destination::kCached, Destination::kStreamed}) {
    for (size_t bytes = 0; bytes <= 300; ++bytes) {
      const Context context(std::to_string(bytes) + " bytes");
      CheckCopies(bytes, bytes % 50 == 0 ? kLine : 5, destination, &random);
    }
    const Context context("large");
    CheckCopies((size_t{1} << 17) + 37, 1, destination, &random);
  }
}

TEST(ElementBytes) {
  const size_t wanted[] = {1, 2, 2, 4, 8};
  for (size_t i = 0; i < std::size(kKinds); ++i) CHECK_EQ(kernels::ElementBytes(kKinds[i]), wanted[i]);
}

// Sums of arbitrary bits of type T, at addresses that suit no type.
template <typename T, typename Bits>
void CheckFloats(ElementKind kind) {
  static_assert(sizeof(T) == sizeof(Bits));
  std::mt19937_64 random(2);
  constexpr size_t kCount = 20'000;
  std::vector<std::byte> dst = RandomBytes(kCount * sizeof(T) + 3, &random);
  const std::vector<std::byte> src = RandomBytes(kCount * sizeof(T) + 3, &random);
  const std::vector<std::byte> before = dst;
  AddTo(dst.data() + 1, src.data() + 3, kCount * sizeof(T), kind);
  bool right = true;
  for (size_t i = 0; i < kCount; ++i) {
    T a;
    T b;
    T sum;
    std::memcpy(&a, before.data() + 1 + i * sizeof(T), sizeof(T));
    std::memcpy(&b, src.data() + 3 + i * sizeof(T), sizeof(T));
    std::memcpy(&sum, dst.data() + 1 + i * sizeof(T), sizeof(T));
    const T wanted = T{0} + a + b;
    const bool same = std::isnan(wanted) ? std::isnan(sum) : std::memcmp(&sum, &wanted, sizeof(T)) == 0;
    right = right && same;
  }
  CHECK(right);
  CHECK(dst.front() == before.front());
  CHECK(std::equal(dst.end() - 2, dst.end(), before.end() - 2));
}

// A 16-bit type: `mantissa` bits of fraction, the rest but the sign are the exponent.
struct Half {
  ElementKind kind;
  int mantissa;

  int exponent_bits() const { return 15 - mantissa; }
  int largest_exponent() const { return (1 << (exponent_bits() - 1)) - 1; }
  int smallest_exponent() const { return 1 - largest_exponent(); }
  uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent_bits()) - 1) << mantissa); }
  bool is_nan(uint16_t bits) const { return (bits & 0x7FFF) > infinity(); }

  double Value(uint16_t bits) const {
    if (is_nan(bits)) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = (bits & 0x7FFF) >> mantissa;
    const int fraction = bits & ((1 << mantissa) - 1);
    double value = std::numeric_limits<double>::infinity();
    if (exponent == 0) {
      value = std::ldexp(fraction, smallest_exponent() - mantissa);
    } else if ((bits & 0x7FFF) != infinity()) {
      value = std::ldexp((1 << mantissa) + fraction, exponent - largest_exponent() - mantissa);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }

  // The value of this type that is nearest to `exact`, of two the even one.
  double Rounded(double exact) const {
    if (exact == 0 || !std::isfinite(exact)) return exact;
    const int unit = std::max(std::ilogb(exact), smallest_exponent()) - mantissa;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(exact, -unit)), unit);
    const double limit = std::ldexp(1.0, largest_exponent() + 1);
    return std::abs(rounded) < limit ? rounded : std::copysign(std::numeric_limits<double>::infinity(), exact);
  }

  // every[i] = i + other, for all 65536 i.
  std::vector<uint16_t> AddToAll(uint16_t other) const {
    std::vector<uint16_t> sums(1 << 16);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<uint16_t>(i);
    const std::vector<uint16_t> others(sums.size(), other);
    AddTo(sums.data(), others.data(), sums.size() * 2, kind);
    return sums;
  }

  uint16_t Sum(uint16_t a, uint16_t b) const {
    AddTo(&a, &b, 2, kind);
    return a;
  }
};

constexpr Half kF16{ElementKind::kF16, 10};
constexpr Half kBF16{ElementKind::kBF16, 7};

bool IsSum(const Half& half, uint16_t a, uint16_t b, uint16_t sum) {
  const double wanted = half.Rounded(0.0 + half.Value(a) + half.Value(b));
  if (std::isnan(wanted)) return half.is_nan(sum);
  return half.Value(sum) == wanted && std::signbit(wanted) == ((sum & 0x8000) != 0);
}

// Adding a zero changes nothing but the sign of another, so every value is read and written back as it was.
void CheckRoundTrip(const Half& half) {
  const std::vector<uint16_t> plus_zero = half.AddToAll(0);
  const std::vector<uint16_t> minus_zero = half.AddToAll(0x8000);
  bool right = true;
  for (size_t i = 0; i < plus_zero.size(); ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (half.is_nan(bits)) {
      const auto quiet = static_cast<uint16_t>(1 << (half.mantissa - 1));
      for (const uint16_t sum : {plus_zero[i], minus_zero[i]}) {
        right = right && half.is_nan(sum) && (sum & quiet) != 0 && ((sum ^ bits) & 0x8000) == 0;
      }
    } else {
      const uint16_t wanted = bits == 0x8000 ? 0 : bits;
      right = right && plus_zero[i] == wanted && minus_zero[i] == wanted;
    }
  }
  CHECK(right);
}

// Double holds every sum of two such numbers so exactly that rounding it once more is right.
void CheckHalf(const Half& half) {
  CheckRoundTrip(half);
  std::mt19937_64 random(3);
  std::vector<uint16_t> others = {0x0001, 0x8001, 0x00FF, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x3F80,
                                  0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80};
  for (int i = 0; i < 16; ++i) others.push_back(static_cast<uint16_t>(random()));
  for (const uint16_t other : others) {
    const Context context("plus " + std::to_string(other));
    const std::vector<uint16_t> sums = half.AddToAll(other);
    bool right = true;
    for (size_t i = 0; i < sums.size(); ++i) right = right && IsSum(half, static_cast<uint16_t>(i), other, sums[i]);
    CHECK(right);
  }
  std::vector<uint16_t> a(200'000);
  std::vector<uint16_t> b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<uint16_t>(random());
    // Near in magnitude, so that there is something to round or to cancel.
    b[i] = static_cast<uint16_t>((a[i] + random() % (size_t{12} << half.mantissa)) ^ (random() % 2 << 15));
  }
  std::vector<uint16_t> sums = a;
  AddTo(sums.data(), b.data(), sums.size() * 2, half.kind);
  bool right = true;
  for (size_t i = 0; i < a.size(); ++i) right = right && IsSum(half, a[i], b[i], sums[i]);
  CHECK(right);
}

// Opaque elements cannot be summed, and what is left of an incomplete one is not touched.
TEST(NothingElseIsAdded) {
  std::mt19937_64 random(4);
  for (const ElementKind kind : kKinds) {
    const size_t element = kernels::ElementBytes(kind);
    for (size_t bytes = 0; bytes <= 5 * element; ++bytes) {
      std::vector<std::byte> dst = RandomBytes(64, &random);
      const std::vector<std::byte> src = RandomBytes(64, &random);
      const std::vector<std::byte> before = dst;
      AddTo(dst.data() + 8, src.data() + 8, bytes, kind);
      const auto end = static_cast<std::ptrdiff_t>(kind == ElementKind::kOpaque ? 8 : 8 + bytes / element * element);
      CHECK(std::equal(dst.begin(), dst.begin() + 8, before.begin()));
      CHECK(std::equal(dst.begin() + end, dst.end(), before.begin() + end));
    }
  }
}

// Rows of 16 bits and their products in float, whose bits are those of one operation after the other.
template <typename Stored, typename Wide>
void CheckScaled(kernels::SumTypes types, double (*value)(Stored)) {
  CHECK(kernels::CanSum(types) && kernels::CanScale(types));
  std::mt19937_64 random(5);
  constexpr size_t kRows = 5;
  for (const size_t elements : {size_t{0}, size_t{1}, size_t{7}, size_t{1023}, size_t{1024}, size_t{2500}}) {
    std::vector<std::vector<std::byte>> rows;
    std::vector<kernels::Summand> summands;
    std::vector<std::byte> factors(kRows * sizeof(Wide) + 1);
    for (size_t i = 0; i < kRows; ++i) {
      rows.push_back(RandomBytes(elements * sizeof(Stored) + 1, &random));
      // No infinities or NaNs.
      for (size_t e = 1; e < rows[i].size(); ++e) rows[i][e] &= std::byte{0xBF};
      std::byte* const factor = factors.data() + 1 + i * sizeof(Wide);
      const auto drawn = static_cast<Wide>(static_cast<double>(random() >> 12) * 0x1p-52 - 0.5);
      std::memcpy(factor, &drawn, sizeof(Wide));
      summands.push_back({rows[i].data() + 1, i == 2 ? nullptr : factor});
    }
    std::vector<std::byte> result = RandomBytes(elements * sizeof(Wide) + 2, &random);
    const std::vector<std::byte> before = result;
    kernels::AddUp(result.data() + 1, elements, types, summands.data(), kRows);
    bool right = true;
    for (size_t e = 0; e < elements; ++e) {
      volatile Wide wanted = 0;  // so that no compiler rounds a product and a sum at once
      for (const kernels::Summand& summand : summands) {
        Stored stored;
        std::memcpy(&stored, summand.row + e * sizeof(Stored), sizeof(Stored));
        Wide factor = 1;
        if (summand.factor != nullptr) std::memcpy(&factor, summand.factor, sizeof(Wide));
        volatile Wide product = static_cast<Wide>(value(stored)) * factor;
        wanted = wanted + product;
      }
      Wide sum;
      std::memcpy(&sum, result.data() + 1 + e * sizeof(Wide), sizeof(Wide));
      right = right && sum == wanted;
    }
    CHECK(right);
    CHECK(result.front() == before.front() && result.back() == before.back());
  }
}

TEST(Scaled) {
  CheckScaled<uint16_t, float>({ElementKind::kF16, ElementKind::kF32}, [](uint16_t v) { return kF16.Value(v); });
  CheckScaled<uint16_t, float>({ElementKind::kBF16, ElementKind::kF32}, [](uint16_t v) { return kBF16.Value(v); });
  CheckScaled<float, float>({ElementKind::kF32, ElementKind::kF32}, [](float v) { return static_cast<double>(v); });
  CheckScaled<double, double>({ElementKind::kF64, ElementKind::kF64}, [](double v) { return v; });
}

// Which types can be summed in which.
TEST(SumTypes) {
  for (const ElementKind element : kKinds) {
    for (const ElementKind sum : kKinds) {
      const bool half = element == ElementKind::kF16 || element == ElementKind::kBF16;
      const bool own = element == sum && element != ElementKind::kOpaque;
      CHECK_EQ(kernels::CanSum({element, sum}), own || (half && sum == ElementKind::kF32));
      CHECK_EQ(kernels::CanScale({element, sum}), (own && !half) || (half && sum == ElementKind::kF32));
    }
  }
}

TEST(Floats) {
  CheckFloats<float, uint32_t>(ElementKind::kF32);
  CheckFloats<double, uint64_t>(ElementKind::kF64);
}

TEST(Halves) {
  CheckHalf(kF16);
  CheckHalf(kBF16);
}

}  // namespace
}  // namespace fastjax::test
