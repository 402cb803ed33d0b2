// Devices chosen for hand-made rows; tests/traced/test_levelling.py has the laws and the optimum.
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
  Ints rows;
};

Result Level(planner::Leveller* leveller, const LevellingShape& shape, const Ints& rows) {
  const auto ranks = static_cast<size_t>(shape.ranks());
  Result result = {Ints(ranks * shape.copies), Ints(ranks * shape.groups())};
  leveller->Level(rows.data(), {result.slots.data(), result.rows.data()});
  return result;
}

Result Level(const LevellingShape& shape, const Ints& rows, int64_t cost_rows = 0) {
  planner::Leveller leveller(shape, cost_rows);
  return Level(&leveller, shape, rows);
}

// By Walker's alias method, one slot each is enough: the second device gives more than it has above the mean, and
// takes.
TEST(DevicesThatGiveMoreThanTheirExcess) {
  const Result result = Level({1, 4, 1, 1}, {15, 8, 1, 0});
  CHECK(result.slots == (Ints{1, -1, 0, 0}));
  CHECK(result.rows == (Ints{4, 2, 6, 0, 1, 5, 0, 6}));
}

// What copies cost decides how many there are, in each server.
TEST(Cost) {
  for (const int64_t cost : {3, 4}) {
    const Result result = Level({2, 2, 1, 1}, {1, 1, 9, 1}, cost);
    CHECK(result.slots == (cost == 3 ? Ints{-1, -1, -1, 2} : Ints{-1, -1, -1, -1}));
  }
}

// A leveller keeps nothing of the rows before.
TEST(Again) {
  const LevellingShape shape = {1, 3, 2, 2};
  const Ints first = {43, 51, 10, 4, 8, 17};
  planner::Leveller leveller(shape, 0);
  const Result once = Level(&leveller, shape, first);
  Level(&leveller, shape, Ints(6, 2));
  const Result again = Level(&leveller, shape, first);
  CHECK(once.slots == again.slots && once.rows == again.rows);
}

}  // namespace
}  // namespace fastjax::test
