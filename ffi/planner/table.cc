#include "planner/table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "planner/hash.h"
#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

int64_t EntriesBegin(int64_t devices) { return kHeaderWords + 2 * devices; }

// Returns the checksum of all words in use, except the word that holds it.
int32_t Checksum(const int32_t* words, int64_t end) {
  const uint64_t before = HashInt32(words, kChecksum, kTableMagic);
  const uint64_t hash = HashInt32(words + kChecksum + 1, end - kChecksum - 1, before);
  return static_cast<int32_t>(static_cast<uint32_t>(hash));
}

void WritePeers(const Planner& planner, int32_t device, int32_t* words) {
  const int64_t devices = planner.topology().devices();
  const int64_t* sends = planner.traffic() + device * devices;
  const int64_t* receives = planner.traffic() + device;
  for (int64_t peer = 0; peer < devices; ++peer) {
    words[kHeaderWords + peer] = static_cast<int32_t>(sends[peer]);
    words[kHeaderWords + devices + peer] = static_cast<int32_t>(receives[peer * devices]);
  }
}

bool RangeFits(int64_t first, int64_t rows, int64_t limit) { return first >= 0 && first + rows <= limit; }

// What is wrong with the rows of an entry in one device's buffers.
const char* CheckRows(const int32_t* entry, int32_t device, int64_t staging_rows) {
  const int64_t rows = entry[kRowsWord];
  if (rows <= 0) return "stage table: an entry moves no rows";
  if (!RangeFits(entry[kFirstRowWord], rows, kMaxInt32)) return "stage table: an entry's rows are out of range";
  for (const auto& [end, row] : {std::pair{kSrcWord, kSrcRowWord}, std::pair{kDstWord, kDstRowWord}}) {
    const int64_t first = entry[row];
    if (first == Transfer::kInPlace) continue;
    const int64_t limit = entry[end] == device ? staging_rows : kMaxInt32;
    if (!RangeFits(first, rows, limit)) return "stage table: an entry's staging rows are out of range";
  }
  return "";
}

const char* CheckEntry(const int32_t* entry, const int32_t* header, int32_t device) {
  const int32_t phase = entry[kPhaseWord];
  if (phase < static_cast<int32_t>(Phase::kLocal) || phase > static_cast<int32_t>(Phase::kRedistribute)) {
    return "stage table: an entry's phase is unknown";
  }
  const int32_t stage = entry[kStageWord];
  const bool local = phase == static_cast<int32_t>(Phase::kLocal);
  if (local ? stage != -1 : stage < 0 || stage >= header[kStages]) {
    return "stage table: an entry's stage is out of range";
  }
  for (int32_t word : {kSrcWord, kDstWord, kOriginWord, kTargetWord}) {
    if (entry[word] < 0 || entry[word] >= header[kDevices]) return "stage table: an entry's device is out of range";
  }
  if (entry[kSrcWord] != device && entry[kDstWord] != device) return "stage table: an entry is of other devices";
  return CheckRows(entry, device, header[kStagingRows]);
}

}  // namespace

// A scheduler that is not known here has to be taken to stage rows.
bool StagesRows(Scheduler scheduler) {
  const auto number = static_cast<int32_t>(scheduler);
  return number < 0 || number >= NumSchedulers() || GetSchedulerInfo(scheduler).traits.stages_rows;
}

int64_t TableWords(const Topology& topology, Scheduler scheduler) {
  return EntriesBegin(topology.devices()) + kEntryWords * GetSchedulerInfo(scheduler).max_entries(topology);
}

bool WriteTable(Planner* planner, int32_t device, int32_t* words) {
  std::fill(words, words + kHeaderWords, 0);
  if (!planner->fits_int32()) return false;
  const TransferRange transfers = planner->DeviceTransfers(device);
  const Topology& topology = planner->topology();
  const int64_t room = TableWords(topology, planner->scheduler()) - EntriesBegin(topology.devices());
  // Proven never to happen (docs/design/stage_tables.md); a mistake in the proof must not write out of bounds.
  if (transfers.size() * kEntryWords > room) return false;
  WritePeers(*planner, device, words);
  int32_t* entry = words + EntriesBegin(topology.devices());
  for (const Transfer& transfer : transfers) {
    WriteEntry(transfer, entry);
    entry += kEntryWords;
  }
  words[kMagic] = kTableMagic;
  words[kDevices] = topology.devices();
  words[kDevice] = device;
  words[kEntries] = static_cast<int32_t>(transfers.size());
  words[kStages] = planner->num_stages();
  words[kStagingRows] = static_cast<int32_t>(planner->StagingRows(device));
  words[kPlanHashLow] = static_cast<int32_t>(static_cast<uint32_t>(planner->hash()));
  words[kPlanHashHigh] = static_cast<int32_t>(static_cast<uint32_t>(planner->hash() >> 32));
  words[kSchedulerUsed] = static_cast<int32_t>(planner->chosen());
  words[kChecksum] = Checksum(words, entry - words);
  return true;
}

void TransposeTable(int32_t* words) {
  const TableView table(words);
  const int32_t devices = words[kDevices];
  std::swap_ranges(words + kHeaderWords, words + kHeaderWords + devices, words + kHeaderWords + devices);
  int32_t* entries = words + EntriesBegin(devices);
  for (int32_t first = 0, last = table.entries() - 1; first <= last; ++first, --last) {
    const Transfer front = Transposed(table.entry(first), table.stages());
    const Transfer back = Transposed(table.entry(last), table.stages());
    WriteEntry(back, entries + int64_t{kEntryWords} * first);
    WriteEntry(front, entries + int64_t{kEntryWords} * last);
  }
  const uint64_t hash = HashMix(table.plan_hash() ^ kHashOdd);
  words[kPlanHashLow] = static_cast<int32_t>(static_cast<uint32_t>(hash));
  words[kPlanHashHigh] = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
  words[kChecksum] = Checksum(words, EntriesBegin(devices) + int64_t{kEntryWords} * table.entries());
}

const char* TableView::Check(const int32_t* words, int64_t num_words, int32_t devices, int32_t device) {
  if (num_words < kHeaderWords) return "stage table: shorter than its header";
  if (words[kMagic] != kTableMagic) return "stage table: not a stage table";
  if (words[kDevices] != devices) return "stage table: made for another number of devices";
  if (words[kDevice] != device) return "stage table: made for another device";
  const int64_t begin = EntriesBegin(devices);
  const int64_t end = begin + int64_t{kEntryWords} * words[kEntries];
  if (words[kEntries] < 0 || end > num_words) return "stage table: more entries than words";
  if (words[kStages] < 0 || words[kStagingRows] < 0) return "stage table: a negative count in the header";
  if (words[kChecksum] != Checksum(words, end)) return "stage table: checksum does not match";
  for (int64_t peer = kHeaderWords; peer < begin; ++peer) {
    if (words[peer] < 0) return "stage table: a negative number of rows for a peer";
  }
  for (int64_t entry = begin; entry < end; entry += kEntryWords) {
    const char* wrong = CheckEntry(words + entry, words, device);
    if (*wrong != '\0') return wrong;
  }
  return "";
}

}  // namespace fastjax::planner
