// That different arrays have different hashes: above all those that differ in few small numbers, as traffic does.
#include "planner/hash.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

uint64_t HashOf(const std::vector<int64_t>& values) {
  return planner::HashInt64(values.data(), static_cast<int64_t>(values.size()), 1);
}

std::vector<int64_t> Random(size_t count, int bits, std::mt19937_64* random) {
  std::vector<int64_t> values(count);
  for (int64_t& value : values) value = static_cast<int64_t>((*random)() >> (64 - bits));
  return values;
}

TEST(OneEntry) {
  std::mt19937_64 random(1);
  for (const size_t count : {1, 7, 16, 17, 33, 64}) {
    const auto values = Random(count, 12, &random);
    std::set<uint64_t> hashes = {HashOf(values)};
    size_t arrays = 1;
    for (size_t at = 0; at < count; ++at) {
      for (int bit = 0; bit < 64; ++bit, ++arrays) {
        auto changed = values;
        changed[at] = static_cast<int64_t>(static_cast<uint64_t>(changed[at]) ^ (uint64_t{1} << bit));
        hashes.insert(HashOf(changed));
      }
    }
    CHECK_EQ(hashes.size(), arrays);
  }
}

// One more or less here, and there, at every distance: rows that go to another device.
TEST(MovedRows) {
  std::mt19937_64 random(2);
  for (const int bits : {4, 12, 20}) {
    const auto values = Random(64, bits, &random);
    std::set<uint64_t> hashes = {HashOf(values)};
    size_t arrays = 1;
    for (size_t from = 0; from < values.size(); ++from) {
      for (size_t to = 0; to < values.size(); ++to) {
        for (const int64_t rows : {1, 2, 7, 4096}) {
          if (to == from) continue;
          auto changed = values;
          changed[from] -= rows;
          changed[to] += rows;
          hashes.insert(HashOf(changed));
          ++arrays;
        }
      }
    }
    CHECK_EQ(hashes.size(), arrays);
  }
}

// Changes that a step of one multiplication, modulo 2^64, lets the step after the next make up for, or the next.
TEST(MadeUpFor) {
  struct Change {
    int bits;
    int64_t added, flipped;
  };
  constexpr Change kChanges[] = {
      {16, 18233, 35923}, {20, 186121, 131139}, {24, 9923444, 132}, {30, int64_t{3} << 26, int64_t{1} << 26}};
  std::mt19937_64 random(3);
  int64_t collisions = 0;
  for (const Change& change : kChanges) {
    for (size_t pair = 0; pair < 4 * 64 * 64; ++pair) {
      auto values = Random(64, change.bits, &random);
      const uint64_t before = HashOf(values);
      values[pair % 64] += change.added;
      values[pair / 64 % 64] ^= change.flipped;
      collisions += HashOf(values) == before;
    }
  }
  CHECK_EQ(collisions, 0);
}

}  // namespace
}  // namespace fastjax::test
