// Takes the bytes for a stage table. One that is accepted must be safe to execute: read in full, every entry joins
// devices of the group, this one among them, and stays inside its buffers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>
#include <vector>

#include "planner/table.h"
#include "support/table_words.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::TableView;
using planner::Transfer;

constexpr int64_t kRowLimit = int64_t{1} << 31;

void Require(bool good, const char* what) {
  if (good) return;
  std::cerr << "accepted, although " << what << "\n";
  std::abort();
}

void RequireRows(int64_t first, int64_t rows, int64_t limit) {
  Require(first >= 0 && rows > 0 && first < limit && rows <= limit - first, "rows are out of range");
}

void RequireEntry(const TableView& table, const Transfer& entry, int32_t devices, int32_t device) {
  const auto phase = static_cast<int32_t>(entry.phase);
  Require(phase >= 0 && phase <= 3, "a phase is unknown");
  Require(entry.phase == Phase::kLocal ? entry.stage == -1 : entry.stage >= 0 && entry.stage < table.stages(),
          "a stage is out of range");
  for (const int32_t end : {entry.src, entry.dst, entry.origin, entry.target}) {
    Require(end >= 0 && end < devices, "a device is out of range");
  }
  Require(entry.src == device || entry.dst == device, "an entry is of other devices");
  RequireRows(entry.first_row, entry.rows, kRowLimit);
  for (const auto& [end, row] : {std::pair{entry.src, entry.src_row}, std::pair{entry.dst, entry.dst_row}}) {
    if (row == Transfer::kInPlace) continue;
    RequireRows(row, entry.rows, end == device ? table.staging_rows() : kRowLimit);
  }
}

void ReadAccepted(const std::vector<int32_t>& words, int32_t devices, int32_t device) {
  const TableView table(words.data());
  Require(UsedWords(words) <= static_cast<int64_t>(words.size()), "it ends early");
  for (int32_t peer = 0; peer < devices; ++peer) {
    Require(table.sends(peer) >= 0 && table.receives(peer) >= 0, "a peer has a negative number of rows");
  }
  for (int32_t i = 0; i < table.entries(); ++i) RequireEntry(table, table.entry(i), devices, device);
}

bool Accepts(const std::vector<int32_t>& words, int32_t devices, int32_t device) {
  return *TableView::Check(words.data(), static_cast<int64_t>(words.size()), devices, device) == '\0';
}

// As it is and turned round, which is how the way back is executed.
void ReadBothWays(const std::vector<int32_t>& words, int32_t devices, int32_t device) {
  ReadAccepted(words, devices, device);
  std::vector<int32_t> back = words;
  planner::TransposeTable(back.data());
  Require(Accepts(back, devices, device), "that of the way back is not");
  ReadAccepted(back, devices, device);
}

void TryTable(std::vector<int32_t> words) {
  // The caller knows how many devices there are and which it is; a table's own claim is as good a choice as any.
  const bool claims = words.size() > planner::kDevice && words[planner::kDevices] > 0 &&
                      words[planner::kDevices] <= 1024 && words[planner::kDevice] >= 0 &&
                      words[planner::kDevice] < words[planner::kDevices];
  const int32_t devices = claims ? words[planner::kDevices] : 8;
  const int32_t device = claims ? words[planner::kDevice] : 0;
  if (Accepts(words, devices, device)) ReadBothWays(words, devices, device);
  if (!claims || words.size() < planner::kHeaderWords || words[planner::kEntries] < 0) return;
  if (UsedWords(words) > static_cast<int64_t>(words.size())) return;
  Reseal(&words);  // no fuzzer finds a checksum
  if (Accepts(words, devices, device)) ReadBothWays(words, devices, device);
}

}  // namespace
}  // namespace fastjax::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<int32_t> words(size / sizeof(int32_t));
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * sizeof(int32_t));
  fastjax::test::TryTable(std::move(words));
  return 0;
}
