// SipHash-2-4 against the test vectors of its authors.
#include "runtime/keyed_hash.h"

#include <numeric>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

// Of the reference implementation's vectors (vectors_sip64): key 00 01 .. 0f, input 00 01 .. of so many bytes.
struct Vector {
  size_t bytes;
  uint64_t hash;
};
constexpr Vector kVectors[] = {
    {0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {2, 0x0d6c8009d9a94f5a},  {3, 0x85676696d7fb7e2d},
    {7, 0xab0200f58b01d137}, {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5},
};

TEST(Vectors) {
  Secret secret{};
  std::iota(secret.begin(), secret.end(), uint8_t{0});
  std::vector<uint8_t> input(64);
  std::iota(input.begin(), input.end(), uint8_t{0});
  for (const Vector& vector : kVectors) CHECK_EQ(KeyedHash(secret, input.data(), vector.bytes), vector.hash);
}

}  // namespace
}  // namespace fastjax::test
