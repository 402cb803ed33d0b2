// Stage tables: that a damaged one is refused for the right reason or safe to execute. What they say of plans, and how
// many rows they can hold, is checked by random_plans.
#include "planner/table.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "support/check.h"
#include "support/table_words.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Planner;
using planner::Scheduler;
using planner::TableView;
using planner::Topology;
using planner::Transfer;

constexpr int32_t kUnwritten = 0x5A5A5A5A;

std::vector<int32_t> MakeTable(Planner* plan, int32_t device) {
  std::vector<int32_t> words(planner::TableWords(plan->topology(), plan->scheduler()), kUnwritten);
  CHECK(WriteTable(plan, device, words.data()));
  return words;
}

std::string Check(const std::vector<int32_t>& words, int32_t devices, int32_t device) {
  return TableView::Check(words.data(), static_cast<int64_t>(words.size()), devices, device);
}

std::vector<Transfer> Entries(const std::vector<int32_t>& words) {
  const TableView table(words.data());
  std::vector<Transfer> entries;
  for (int32_t i = 0; i < table.entries(); ++i) entries.push_back(table.entry(i));
  return entries;
}

using Damage = std::function<void(std::vector<int32_t>*)>;

TEST(Refused) {
  const Topology topology = MakeTopology(2, 4);
  Planner plan(topology, Scheduler::kFast, 64);
  const Matrix traffic = Fill(topology, [](int32_t i, int32_t j) { return 3 + (i * 7 + j * 5) % 11; });
  plan.Plan(traffic.data());
  const std::vector<int32_t> good = MakeTable(&plan, 0);
  const auto refused = [&](const std::string& message, bool reseal, const Damage& damage) {
    std::vector<int32_t> words = good;
    damage(&words);
    if (reseal) Reseal(&words);
    CHECK_EQ(Check(words, 8, 0), "stage table: " + message);
  };
  const int32_t first_entry = planner::kHeaderWords + 2 * 8;
  const std::vector<Transfer> entries = Entries(good);
  const auto find = [&](auto matches) {
    return first_entry +
           planner::kEntryWords *
               static_cast<int32_t>(std::find_if(entries.begin(), entries.end(), matches) - entries.begin());
  };
  const int32_t scale_out = find([](const Transfer& t) { return t.phase == planner::Phase::kScaleOut; });
  const int32_t received = find([](const Transfer& t) { return t.dst == 0 && t.dst_row >= 0; });
  const auto set = [](int32_t word, int32_t value) {
    return [=](std::vector<int32_t>* words) { (*words)[word] = value; };
  };

  CHECK_EQ(Check(good, 8, 0), "");
  refused("shorter than its header", false, [](auto* words) { words->resize(5); });
  refused("not a stage table", false, set(planner::kMagic, 0));
  refused("made for another number of devices", false, set(planner::kDevices, 4));
  refused("made for another device", false, set(planner::kDevice, 1));
  refused("more entries than words", false, set(planner::kEntries, 1 << 20));
  refused("more entries than words", false, set(planner::kEntries, -1));
  refused("a negative count in the header", false, set(planner::kStages, -1));
  refused("a negative count in the header", false, set(planner::kStagingRows, -1));
  refused("checksum does not match", false, set(planner::kEntries, good[planner::kEntries] - 1));
  for (int32_t word = planner::kStages; word < UsedWords(good); ++word) {
    refused("checksum does not match", false, set(word, good[word] ^ 0x40));
  }
  refused("a negative number of rows for a peer", true, set(planner::kHeaderWords + 3, -7));
  refused("an entry's phase is unknown", true, set(scale_out, 4));
  refused("an entry's phase is unknown", true, set(scale_out, -1));
  refused("an entry's stage is out of range", true, set(scale_out + 1, good[planner::kStages]));
  refused("an entry's stage is out of range", true, set(scale_out + 1, -1));
  refused("an entry's stage is out of range", true, set(first_entry + 1, 0));  // a local entry has none
  for (int32_t word = 2; word < 6; ++word) {
    refused("an entry's device is out of range", true, set(scale_out + word, 8));
    refused("an entry's device is out of range", true, set(scale_out + word, -1));
  }
  refused("an entry is of other devices", true, [&](std::vector<int32_t>* words) {
    (*words)[scale_out + 2] = 3;
    (*words)[scale_out + 3] = 7;
  });
  refused("an entry moves no rows", true, set(scale_out + 7, 0));
  refused("an entry moves no rows", true, set(scale_out + 7, -5));
  refused("an entry's rows are out of range", true, set(scale_out + 6, -1));
  refused("an entry's rows are out of range", true, set(scale_out + 6, 0x7FFFFFFF));
  refused("an entry's staging rows are out of range", true, set(received + 9, good[planner::kStagingRows]));
  refused("an entry's staging rows are out of range", true, set(received + 9, -2));
  refused("an entry's staging rows are out of range", true, set(received + 8, -2));
}

bool InRange(int64_t first, int64_t rows, int64_t limit) {
  return first >= 0 && rows > 0 && first < limit && rows <= limit - first;
}

// What executing a table relies on: every entry joins devices of the group, this one among them, and stays inside its
// buffers.
void CheckSafe(const std::vector<int32_t>& words, int32_t devices, int32_t device) {
  constexpr int64_t kRowLimit = int64_t{1} << 31;
  const TableView table(words.data());
  if (!CHECK_LE(UsedWords(words), static_cast<int64_t>(words.size()))) return;
  for (int32_t peer = 0; peer < devices; ++peer) CHECK(table.sends(peer) >= 0 && table.receives(peer) >= 0);
  for (const Transfer& entry : Entries(words)) {
    const auto phase = static_cast<int32_t>(entry.phase);
    CHECK(phase >= 0 && phase <= 3);
    CHECK(entry.phase == Phase::kLocal ? entry.stage == -1 : entry.stage >= 0 && entry.stage < table.stages());
    for (const int32_t end : {entry.src, entry.dst, entry.origin, entry.target}) CHECK(end >= 0 && end < devices);
    CHECK(entry.src == device || entry.dst == device);
    CHECK(InRange(entry.first_row, entry.rows, kRowLimit));
    for (const auto& [end, row] : {std::pair{entry.src, entry.src_row}, std::pair{entry.dst, entry.dst_row}}) {
      const int64_t limit = end == device ? table.staging_rows() : kRowLimit;
      CHECK(row == Transfer::kInPlace || InRange(row, entry.rows, limit));
    }
  }
}

// Whatever words are changed, with a checksum that fits: refused, or safe to execute, as it is and turned round.
TEST(Damaged) {
  constexpr int32_t kRounds = 5000;
  std::mt19937_64 random(1);
  const Topology topology = MakeTopology(2, 4);
  Planner plan(topology, Scheduler::kFast, 64);
  int64_t refused = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    const Matrix traffic = Fill(topology, [&](int32_t, int32_t) { return random() % 3 == 0 ? 0 : random() % 9; });
    plan.Plan(traffic.data());
    const auto device = static_cast<int32_t>(random() % 8);
    std::vector<int32_t> words = MakeTable(&plan, device);
    words.resize(static_cast<size_t>(UsedWords(words)));
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      int32_t& word = words[random() % words.size()];
      const auto bits = static_cast<uint32_t>(word) ^ (1U << (random() % 32));
      const int32_t values[] = {word + 1, word - 1, words[random() % words.size()], static_cast<int32_t>(bits),
                                -1,       INT32_MAX};
      word = values[random() % 6];
    }
    if (words[planner::kDevices] != 8 || words[planner::kEntries] < 0) continue;
    if (UsedWords(words) > static_cast<int64_t>(words.size())) continue;
    Reseal(&words);
    if (!Check(words, 8, device).empty()) {
      ++refused;
      continue;
    }
    CheckSafe(words, 8, device);
    planner::TransposeTable(words.data());
    CHECK_EQ(Check(words, 8, device), "");
    CheckSafe(words, 8, device);
  }
  CHECK_GT(refused, kRounds / 3);
  CHECK_LT(refused, kRounds * 9 / 10);  // the others are what this is about
}

}  // namespace
}  // namespace fastjax::test
