// The stage table: the slice of a plan that one device executes, as a fixed-shape int32 array.
#ifndef FASTJAX_PLANNER_TABLE_H_
#define FASTJAX_PLANNER_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "planner/planner.h"

namespace fastjax::planner {

// Layout, in int32 words: kHeaderWords of header, `devices` words of rows this device sends to each device,
// `devices` words of rows it receives from each, then entries of kEntryWords each (a Transfer, field by field).
// A plan's table also describes the way back: read with src and dst, origin and target, src_row and dst_row, and
// balance and redistribution exchanged, and last to first, it is the table of the transposed traffic.
inline constexpr int32_t kTableMagic = 0x464A5431;  // "FJT1"
inline constexpr int32_t kHeaderWords = 16;
inline constexpr int32_t kEntryWords = 10;

enum HeaderWord : int32_t {
  kMagic = 0,
  kDevices = 1,      // devices in the group
  kDevice = 2,       // whose table this is
  kEntries = 3,      // entries in use
  kStages = 4,       // scale-out stages of the whole plan
  kStagingRows = 5,  // rows of staging this device needs
  kPlanHashLow = 6,  // of traffic, topology and scheduler: equal in the tables of one plan only
  kPlanHashHigh = 7,
  kChecksum = 8,  // of every other word in use
  kSchedulerUsed = 9,
};

enum EntryWord : int32_t {
  kPhaseWord = 0,
  kStageWord = 1,
  kSrcWord = 2,
  kDstWord = 3,
  kOriginWord = 4,
  kTargetWord = 5,
  kFirstRowWord = 6,
  kRowsWord = 7,
  kSrcRowWord = 8,
  kDstRowWord = 9,
};

// Whether the scheduler has rows rest on devices between their origin and their target.
bool StagesRows(Scheduler scheduler);

// Words that the table of any device takes, whatever the traffic; see docs/design/stage_tables.md for the proof.
int64_t TableWords(const Topology& topology, Scheduler scheduler);

// Writes `device`'s slice into words[0, TableWords): as many of them as it has entries for. Returns false, and writes
// an all-zero header, where rows do not fit int32.
[[nodiscard]] bool WriteTable(Planner* planner, int32_t device, int32_t* words);

// The rows of what is written must be numbers that int32 has.
inline void WriteEntry(const Transfer& transfer, int32_t* words) {
  words[kPhaseWord] = static_cast<int32_t>(transfer.phase);
  words[kStageWord] = transfer.stage;
  words[kSrcWord] = transfer.src;
  words[kDstWord] = transfer.dst;
  words[kOriginWord] = transfer.origin;
  words[kTargetWord] = transfer.target;
  words[kFirstRowWord] = static_cast<int32_t>(transfer.first_row);
  words[kRowsWord] = static_cast<int32_t>(transfer.rows);
  words[kSrcRowWord] = static_cast<int32_t>(transfer.src_row);
  words[kDstRowWord] = static_cast<int32_t>(transfer.dst_row);
}

inline Transfer ReadEntry(const int32_t* words) {
  return {static_cast<Phase>(words[kPhaseWord]),
          words[kStageWord],
          words[kSrcWord],
          words[kDstWord],
          words[kOriginWord],
          words[kTargetWord],
          words[kFirstRowWord],
          words[kRowsWord],
          words[kSrcRowWord],
          words[kDstRowWord]};
}

// The transfer on the way back: of the transposed plan, which has `stages` stages, in the opposite order.
inline Transfer Transposed(const Transfer& transfer, int32_t stages) {
  constexpr Phase kBack[] = {Phase::kLocal, Phase::kRedistribute, Phase::kScaleOut, Phase::kBalance};
  return {kBack[static_cast<size_t>(transfer.phase)],
          transfer.phase == Phase::kLocal ? transfer.stage : stages - 1 - transfer.stage,
          transfer.dst,
          transfer.src,
          transfer.target,
          transfer.origin,
          transfer.first_row,
          transfer.rows,
          transfer.dst_row,
          transfer.src_row};
}

// Turns a table that WriteTable wrote into that of the transposed traffic.
void TransposeTable(int32_t* words);

// A validated view of a table.
class TableView {
 public:
  // Returns an empty string, or what is wrong with the words. Reads only words that are in use.
  static const char* Check(const int32_t* words, int64_t num_words, int32_t devices, int32_t device);

  explicit TableView(const int32_t* words) : words_(words) {}
  int32_t entries() const { return words_[kEntries]; }
  int32_t stages() const { return words_[kStages]; }
  int64_t staging_rows() const { return words_[kStagingRows]; }
  // That made the plan. What a table says may be no scheduler's number.
  Scheduler scheduler() const { return static_cast<Scheduler>(words_[kSchedulerUsed]); }
  uint64_t plan_hash() const {
    return static_cast<uint64_t>(static_cast<uint32_t>(words_[kPlanHashLow])) |
           (static_cast<uint64_t>(static_cast<uint32_t>(words_[kPlanHashHigh])) << 32);
  }
  int64_t sends(int32_t peer) const { return words_[kHeaderWords + peer]; }
  int64_t receives(int32_t peer) const { return words_[kHeaderWords + words_[kDevices] + peer]; }
  Transfer entry(int32_t i) const { return ReadEntry(entry_words() + int64_t{kEntryWords} * i); }
  // Those of the first entry; the others follow.
  const int32_t* entry_words() const { return words_ + kHeaderWords + 2 * int64_t{words_[kDevices]}; }

 private:
  const int32_t* words_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TABLE_H_
