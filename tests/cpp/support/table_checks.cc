#include "support/table_checks.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "planner/table.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/table_words.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Planner;
using planner::TableView;
using planner::Transfer;

constexpr int32_t kUnwritten = 0x5A5A5A5A;
constexpr int64_t kInt32Limit = int64_t{1} << 31;

void CheckPeers(const Matrix& traffic, size_t devices, const TableView& table, int32_t device) {
  for (size_t peer = 0; peer < devices; ++peer) {
    CHECK_EQ(table.sends(static_cast<int32_t>(peer)), traffic[device * devices + peer]);
    CHECK_EQ(table.receives(static_cast<int32_t>(peer)), traffic[peer * devices + device]);
  }
}

// The table of the way back holds the same transfers, last to first, with their ends and roles exchanged.
void CheckWayBack(const TableWriter& writer, int32_t devices, int32_t device) {
  std::vector<int32_t> back(writer.words(), writer.words() + writer.used());
  planner::TransposeTable(back.data());
  if (!CHECK_EQ(std::string_view(TableView::Check(back.data(), writer.used(), devices, device)), "")) return;
  const TableView ahead_table(writer.words());
  const TableView back_table(back.data());
  const int32_t entries = ahead_table.entries();
  if (!CHECK_EQ(back_table.entries(), entries)) return;
  CHECK_EQ(back_table.staging_rows(), ahead_table.staging_rows());
  CHECK_NE(back_table.plan_hash(), ahead_table.plan_hash());
  for (int32_t peer = 0; peer < devices; ++peer) {
    CHECK_EQ(back_table.sends(peer), ahead_table.receives(peer));
    CHECK_EQ(back_table.receives(peer), ahead_table.sends(peer));
  }
  for (int32_t i = 0; i < entries; ++i) {
    Transfer expected = Reversed({ahead_table.entry(i)}).front();
    if (expected.phase != Phase::kLocal) expected.stage = ahead_table.stages() - 1 - expected.stage;
    if (!CHECK(Equal(back_table.entry(entries - 1 - i), expected))) return;
  }
}

// A table holds exactly a device's transfers, which are among `all` of the plan's.
void CheckTables(const Matrix& traffic, Planner* plan, const std::vector<Transfer>& all) {
  const int32_t devices = plan->topology().devices();
  const auto by_device = ByDevice(devices, all);
  TableWriter writer(plan);
  for (int32_t device = 0; device < devices; ++device) {
    if (!CHECK(writer.Write(device))) return;
    if (!CHECK_EQ(std::string_view(TableView::Check(writer.words(), writer.size(), devices, device)), "")) return;
    const TableView table(writer.words());
    const std::vector<int32_t>& mine = by_device[device];
    if (!CHECK_EQ(table.entries(), static_cast<int64_t>(mine.size()))) return;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!CHECK(Equal(table.entry(static_cast<int32_t>(i)), all[mine[i]]))) return;
    }
    CHECK_EQ(table.stages(), plan->num_stages());
    CHECK_EQ(table.staging_rows(), plan->StagingRows(device));
    CHECK_EQ(table.plan_hash(), plan->hash());
    CHECK(table.scheduler() == plan->chosen());
    CheckPeers(traffic, static_cast<size_t>(devices), table, device);
    CheckWayBack(writer, devices, device);
  }
  writer.CheckUnwritten();
}

void CheckNoTables(Planner* plan) {
  TableWriter writer(plan);
  for (int32_t device = 0; device < plan->topology().devices(); ++device) {
    CHECK(!writer.Write(device));
    CHECK_EQ(std::count(writer.words(), writer.words() + planner::kHeaderWords, 0), planner::kHeaderWords);
  }
  writer.CheckUnwritten();
}

}  // namespace

TableWriter::TableWriter(Planner* plan)
    : plan_(plan), words_(planner::TableWords(plan->topology(), plan->scheduler()), kUnwritten) {}

bool TableWriter::Write(int32_t device) {
  std::fill_n(words_.begin(), used_, kUnwritten);
  const bool written = planner::WriteTable(plan_, device, words_.data());
  used_ = written ? UsedWords(words_) : planner::kHeaderWords;
  if (!CHECK_GE(used_, planner::kHeaderWords) || !CHECK_LE(used_, size())) used_ = planner::kHeaderWords;
  return written;
}

void TableWriter::CheckUnwritten() const {
  CHECK_EQ(std::count(words_.begin() + used_, words_.end(), kUnwritten), size() - used_);
}

void CheckAllTables(const Matrix& traffic, Planner* plan, const std::vector<Transfer>& all) {
  const std::vector<int64_t> staging = StagingRows(*plan);
  const bool fit = *std::max_element(traffic.begin(), traffic.end()) < kInt32Limit &&
                   *std::max_element(staging.begin(), staging.end()) < kInt32Limit;
  fit ? CheckTables(traffic, plan, all) : CheckNoTables(plan);
}

}  // namespace fastjax::test
