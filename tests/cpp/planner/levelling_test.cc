// That rows are dealt by hand-made counts as they should be; tests/traced/test_levelling.py has the laws and the
// optimum.
#include "planner/levelling.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::LevellingShape;
using Ints = std::vector<int32_t>;

struct Result {
  Ints slots;
  Ints sizes;
  Ints starts;
};

Result Level(planner::Leveller* leveller, const Ints& counts) {
  const LevellingShape& shape = leveller->shape();
  const size_t sizes = static_cast<size_t>(shape.ranks()) * shape.ranks() * shape.groups();
  Result result = {Ints(static_cast<size_t>(shape.ranks()) * shape.copies), Ints(sizes), Ints(sizes)};
  leveller->Level(counts.data(), {result.slots.data(), result.sizes.data(), result.starts.data()});
  return result;
}

Result Level(const LevellingShape& shape, const Ints& counts) {
  planner::Leveller leveller(shape);
  return Level(&leveller, counts);
}

// Expert 0 has 6 + 4 rows, expert 1 has 1 + 1: the second device takes 4 of its own.
void TestOwnRowsStay() {
  const Result result = Level({1, 2, 1, 1, 0}, {6, 1, 4, 1});
  CHECK(result.slots == (Ints{-1, 0}));
  CHECK(result.sizes == (Ints{6, 0, 1, 0, 0, 0, 1, 4}));
  CHECK(result.starts == (Ints{0, 0, 6, 6, 0, 0, 4, 0}));
}

// By Walker's alias method, one slot each is enough: the second device gives more than it has above the mean, and
// takes.
void TestDevicesThatGiveMoreThanTheirExcess() {
  const Ints rows = {15, 8, 1, 0};
  Ints counts(16);
  for (size_t e = 0; e < 4; ++e) counts[e] = rows[e];
  const Result result = Level({1, 4, 1, 1, 0}, counts);
  CHECK(result.slots == (Ints{1, -1, 0, 0}));
  CHECK(Ints(result.sizes.begin(), result.sizes.begin() + 8) == (Ints{4, 2, 6, 0, 1, 5, 0, 6}));
  CHECK(Ints(result.starts.begin(), result.starts.begin() + 8) == (Ints{0, 15, 17, 0, 23, 4, 24, 9}));
}

// What copies cost decides how many there are, in each server.
void TestCost() {
  const Ints counts = {9, 1, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (const int64_t cost : {3, 4}) {
    const Result result = Level({2, 2, 1, 1, cost}, counts);
    CHECK(result.slots == (cost == 3 ? Ints{-1, 0, -1, -1} : Ints{-1, -1, -1, -1}));
  }
}

// A leveller keeps nothing of the counts before.
void TestAgain() {
  const LevellingShape shape = {1, 3, 2, 2, 0};
  const Ints first = {5, 40, 0, 3, 8, 1, 2, 2, 9, 9, 1, 0, 30, 1, 1, 0, 0, 7};
  planner::Leveller leveller(shape);
  const Result once = Level(&leveller, first);
  Level(&leveller, Ints(18, 2));
  const Result again = Level(&leveller, first);
  CHECK(once.slots == again.slots && once.sizes == again.sizes && once.starts == again.starts);
}

}  // namespace
}  // namespace fastjax::test

int main() {
  using namespace fastjax::test;
  TestOwnRowsStay();
  TestDevicesThatGiveMoreThanTheirExcess();
  TestCost();
  TestAgain();
  return Finish("levelling_test");
}
