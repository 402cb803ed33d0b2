// That hand-made counts are dealt as they should be; tests/traced/test_dealing.py has the laws.
#include "planner/dealing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::FindWrongSlot;
using planner::LevellingShape;
using Ints = std::vector<int32_t>;

constexpr LevellingShape kTwo = {1, 2, 1, 1};

struct Result {
  Ints sizes;
  Ints starts;
};

Result Deal(planner::Dealer* dealer, const LevellingShape& shape, const Ints& counts, const Ints& slots,
            const Ints& rows) {
  const size_t sizes = static_cast<size_t>(shape.ranks()) * shape.ranks() * shape.groups();
  Result result = {Ints(sizes), Ints(sizes)};
  dealer->Deal(counts.data(), slots.data(), rows.data(), {result.sizes.data(), result.starts.data()});
  return result;
}

Result Deal(const LevellingShape& shape, const Ints& counts, const Ints& slots, const Ints& rows) {
  planner::Dealer dealer(shape);
  return Deal(&dealer, shape, counts, slots, rows);
}

// Expert 0 has 6 + 4 rows, expert 1 has 1 + 1: the second device takes 4 of its own.
TEST(OwnRowsStay) {
  const Result result = Deal(kTwo, {6, 1, 4, 1}, {-1, 0}, {6, 0, 2, 4});
  CHECK(result.sizes == (Ints{6, 0, 1, 0, 0, 0, 1, 4}));
  CHECK(result.starts == (Ints{0, 0, 6, 6, 0, 0, 4, 0}));
}

// There are 9 of 10 rows, of which the first device has 3 of 10: the line is cut at 2.7, so that it has 3.
TEST(APart) {
  const Result result = Deal(kTwo, {5, 0, 4, 0}, {-1, 0}, {3, 0, 0, 7});
  CHECK(result.sizes == (Ints{3, 0, 0, 2, 0, 0, 0, 4}));
  CHECK(result.starts == (Ints{0, 0, 5, 3, 0, 0, 4, 0}));
}

// Products do not overflow, and nothing is lost, for as many rows as there can be; without any, rows stay at home.
TEST(ManyRows) {
  constexpr int32_t kMost = INT32_MAX;
  const Result many = Deal(kTwo, {kMost - 1, 0, 0, 0}, {-1, 0}, {kMost / 2, 0, 0, kMost / 2 + 1});
  CHECK(many.sizes[0] > kMost / 2 - 100000 && many.sizes[0] < kMost / 2 + 100000);
  CHECK(many.sizes[0] + many.sizes[3] == kMost - 1);
  const Result none = Deal(kTwo, {kMost, 0, 0, 0}, {-1, 0}, {0, 0, 0, 0});
  CHECK(none.sizes == (Ints{kMost, 0, 0, 0, 0, 0, 0, 0}));
}

// A dealer keeps nothing of the counts before.
TEST(Again) {
  const LevellingShape shape = {1, 3, 2, 2};
  const Ints counts = {5, 40, 0, 3, 8, 1, 2, 2, 9, 9, 1, 0, 30, 1, 1, 0, 0, 7};
  const Ints slots = {-1, -1, 1, -1, 0, 1};
  const Ints rows = {20, 15, 0, 0, 10, 12, 15, 0, 9, 8, 17, 13};
  planner::Dealer dealer(shape);
  const Result once = Deal(&dealer, shape, counts, slots, rows);
  Deal(&dealer, shape, Ints(18, 2), {-1, -1, 0, 5, -1, -1}, Ints(12, 3));
  const Result again = Deal(&dealer, shape, counts, slots, rows);
  CHECK(once.sizes == again.sizes && once.starts == again.starts);
}

TEST(WrongSlots) {
  const LevellingShape shape = {2, 2, 2, 2};
  const auto wrong = [&](const Ints& slots) { return FindWrongSlot(shape, slots.data()); };
  CHECK_EQ(wrong({2, -1, -1, 1, 7, 6, -1, -1}), "");
  CHECK_EQ(wrong({2, 2, -1, 1, 7, 6, -1, -1}), "slot 1 of device 0 has expert 2, as another of its slots has.");
  for (const int32_t expert : {-2, INT32_MIN, 0, 1, 4, INT32_MAX}) {
    CHECK_EQ(wrong({-1, expert, -1, -1, -1, -1, -1, -1}),
             "slot 1 of device 0 has expert " + std::to_string(expert) +
                 ". It must be one of another device of its server, whose experts are 0 to 3, or -1.");
  }
}

}  // namespace
}  // namespace fastjax::test
