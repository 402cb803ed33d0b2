// Checks of the stage tables that a plan is written to.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_TABLE_CHECKS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_TABLE_CHECKS_H_

#include <cstdint>
#include <vector>

#include "planner/planner.h"
#include "planner/transfer.h"
#include "support/traffic.h"

namespace fastjax::test {

// Tables of one device after the other, in memory that ends where a table may end.
class TableWriter {
 public:
  explicit TableWriter(planner::Planner* plan);

  // Whether there is a table; it is in words() then.
  bool Write(int32_t device);
  // Call this last: words behind those in use are neither written nor read.
  void CheckUnwritten() const;

  const int32_t* words() const { return words_.data(); }
  int64_t used() const { return used_; }
  int64_t size() const { return static_cast<int64_t>(words_.size()); }

 private:
  planner::Planner* plan_;
  std::vector<int32_t> words_;
  int64_t used_ = 0;
};

// Every device's table holds exactly its transfers, and fits, and turns into that of the way back. There are none where
// a block is too large, or staging is: it depends on counts and topology alone, and is the same for every device.
void CheckAllTables(const Matrix& traffic, planner::Planner* plan, const std::vector<planner::Transfer>& all);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_TABLE_CHECKS_H_
