// Stage tables to be damaged.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_TABLE_WORDS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_TABLE_WORDS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "planner/hash.h"
#include "planner/table.h"

namespace fastjax::test {

inline int64_t UsedWords(const std::vector<int32_t>& words) {
  return planner::kHeaderWords + 2 * int64_t{words[planner::kDevices]} +
         int64_t{planner::kEntryWords} * words[planner::kEntries];
}

// As a planner with a mistake would write it: everything but the mistake is consistent.
inline void Reseal(std::vector<int32_t>* words) {
  constexpr int64_t kAfter = planner::kChecksum + 1;
  const uint64_t before = planner::HashInt32(words->data(), planner::kChecksum, planner::kTableMagic);
  const uint64_t hash = planner::HashInt32(words->data() + kAfter, UsedWords(*words) - kAfter, before);
  (*words)[planner::kChecksum] = static_cast<int32_t>(static_cast<uint32_t>(hash));
}

// Makes a sound table wrong in a few places, and its checksum right.
inline void Damage(std::vector<int32_t>* table, std::mt19937_64* random) {
  const auto entries = static_cast<size_t>(planner::kHeaderWords + 2 * (*table)[planner::kDevices]);
  const auto any = [&] { return entries + (*random)() % (static_cast<size_t>(UsedWords(*table)) - entries); };
  for (uint64_t changes = 1 + (*random)() % 3; changes > 0; --changes) {
    size_t word = any();
    if ((*random)() % 10 == 0) word = (*random)() % 2 == 0 ? planner::kStages : planner::kStagingRows;
    const int32_t was = (*table)[word];
    const int32_t values[] = {was + 1, was - 1, was + 7, (*table)[any()], 0, -1};
    (*table)[word] = values[(*random)() % 6];
  }
  Reseal(table);
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_TABLE_WORDS_H_
