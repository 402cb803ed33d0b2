// Offsets and sizes of every integer type, as int64.
#include "exchange/int_view.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kGuard = 0x5A5A5A5A5A5A5A5A;

template <typename T>
void CheckKind(IntKind kind, const std::vector<T>& values, const std::vector<int64_t>& wanted) {
  std::vector<int64_t> out(values.size() + 1, kGuard);
  IntView{values.data(), static_cast<int64_t>(values.size()), kind}.CopyTo(out.data());
  for (size_t i = 0; i < wanted.size(); ++i) CHECK_EQ(out[i], wanted[i]);
  CHECK_EQ(out.back(), kGuard);
}

// The least, some, and the greatest value of T, all of which int64 has too.
template <typename T>
void CheckExact(IntKind kind) {
  constexpr T kLeast = std::numeric_limits<T>::min();
  constexpr T kGreatest = std::numeric_limits<T>::max();
  CheckKind<T>(
      kind, {kLeast, static_cast<T>(kLeast + 1), 0, 1, 100, kGreatest},
      {static_cast<int64_t>(kLeast), static_cast<int64_t>(kLeast) + 1, 0, 1, 100, static_cast<int64_t>(kGreatest)});
  if (std::numeric_limits<T>::is_signed) CheckKind<T>(kind, {static_cast<T>(-1), static_cast<T>(-100)}, {-1, -100});
}

TEST(Kinds) {
  CheckExact<int8_t>(IntKind::kS8);
  CheckExact<int16_t>(IntKind::kS16);
  CheckExact<int32_t>(IntKind::kS32);
  CheckExact<int64_t>(IntKind::kS64);
  CheckExact<uint8_t>(IntKind::kU8);
  CheckExact<uint16_t>(IntKind::kU16);
  CheckExact<uint32_t>(IntKind::kU32);
  constexpr uint64_t kTooLarge = uint64_t{1} << 63;
  CheckKind<uint64_t>(IntKind::kU64, {0, 1, kTooLarge - 1, kTooLarge, kTooLarge + 1, ~uint64_t{0}},
                      {0, 1, kMax, kMax, kMax, kMax});
}

TEST(Nothing) {
  int64_t out = kGuard;
  IntView{}.CopyTo(&out);
  CHECK_EQ(out, kGuard);
}

}  // namespace
}  // namespace fastjax::test
