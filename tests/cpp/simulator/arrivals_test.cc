// What is said of transfers that cannot be an exchange.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "planner/transfer.h"
#include "simulator/messages.h"
#include "support/check.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Transfer;

// What is wrong with these transfers, or an empty string.
std::string Refusal(const std::vector<Transfer>& transfers) {
  try {
    simulator::GatherMessages(transfers);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

void TestRowsThatComeTwice() {
  const Transfer straight = Rows(Phase::kLocal, -1, 0, 1, {0, 1}, 0, 5);
  CHECK_EQ(Refusal({straight, Rows(Phase::kLocal, -1, 0, 1, {0, 1}, 5, 2)}), "");
  CHECK_EQ(Refusal({straight, Rows(Phase::kLocal, -1, 0, 1, {0, 1}, 4, 2)}),
           "row 4 of block 0 -> 1 comes to device 1 twice: from device 0 (phase 0, stage -1) and from device 0 (phase "
           "0, stage -1)");
  CHECK_EQ(Refusal({straight, Rows(Phase::kBalance, 0, 0, 2, {0, 1}, 1, 2),
                    Rows(Phase::kRedistribute, 0, 2, 1, {0, 1}, 1, 2)}),
           "rows 1 to 2 of block 0 -> 1 come to device 1 twice: from device 0 (phase 0, stage -1) and from device 2 "
           "(phase 3, stage 0)");
}

void TestRowsThatAreNotThere() {
  const Transfer on = Rows(Phase::kScaleOut, 0, 1, 2, {0, 2}, 0, 5);
  CHECK_EQ(Refusal({Rows(Phase::kBalance, 0, 0, 1, {0, 2}, 0, 5), on}), "");
  const std::string words =
      " rows of block 0 -> 2 are sent on by device 1 to device 2 (phase 2, stage 0), where no transfer brings them";
  CHECK_EQ(Refusal({on}), "5" + words);
  // Two of them come, in two parts.
  CHECK_EQ(Refusal({Rows(Phase::kBalance, 0, 0, 1, {0, 2}, 0, 1), Rows(Phase::kBalance, 0, 0, 1, {0, 2}, 3, 1), on}),
           "3" + words);
  // Rows that are said to stay on a device must have come there, too.
  CHECK_EQ(Refusal({Rows(Phase::kScaleOut, 0, 0, 2, {0, 2}, 0, 4), Rows(Phase::kLocal, -1, 1, 1, {0, 2}, 0, 4)}),
           "4 rows of block 0 -> 2 are sent on by device 1 to device 1 (phase 0, stage -1), where no transfer brings "
           "them");
}

void TestRowsThatDoNotArrive() {
  const Transfer balance = Rows(Phase::kBalance, 0, 0, 1, {0, 2}, 0, 5);
  CHECK_EQ(Refusal({balance, Rows(Phase::kScaleOut, 0, 1, 2, {0, 2}, 1, 4)}),
           "1 rows of block 0 -> 2 are sent from device 0 to device 1 (phase 1, stage 0), and no transfer brings them "
           "to device 2");
  CHECK_EQ(Refusal({Rows(Phase::kLocal, -1, 0, 0, {0, 2}, 0, 5)}),
           "5 rows of block 0 -> 2 are sent from device 0 to device 0 (phase 0, stage -1), and no transfer brings them "
           "to device 2");
  CHECK_EQ(Refusal({Rows(Phase::kLocal, -1, 2, 2, {2, 2}, 0, 5)}), "");
}

void TestRowsThatGoOnFromTheirTarget() {
  CHECK_EQ(Refusal({Rows(Phase::kScaleOut, 0, 0, 2, {0, 2}, 0, 5), Rows(Phase::kRedistribute, 0, 2, 3, {0, 2}, 0, 5)}),
           "rows of block 0 -> 2 are sent on by device 2 to device 3 (phase 3, stage 0), though they are at their "
           "target");
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestRowsThatComeTwice();
  fastjax::test::TestRowsThatAreNotThere();
  fastjax::test::TestRowsThatDoNotArrive();
  fastjax::test::TestRowsThatGoOnFromTheirTarget();
  return fastjax::test::Finish("arrivals_test");
}
