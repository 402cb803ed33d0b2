#include "planner/cover.h"

#include <algorithm>

#include "planner/bits.h"

namespace fastjax::planner {
namespace {

constexpr int kDigitBits = 8;
constexpr size_t kFewEntries = 24;
constexpr uint32_t kDigits = 1U << kDigitBits;

}  // namespace

GreedyCover::GreedyCover(int32_t servers)
    : servers_(servers),
      words_(BitWords(static_cast<int32_t>(MaxStages(servers)))),
      row_busy_(static_cast<size_t>(servers) * words_),
      column_busy_(static_cast<size_t>(servers) * words_),
      row_first_(servers),
      column_first_(servers) {}

void GreedyCover::Clear() {
  to_.clear();
  lengths_.clear();
  total_ = 0;
}

void GreedyCover::Build(const int32_t* left) {
  Clear();
  Sort(left);
  std::fill(row_busy_.begin(), row_busy_.end(), 0);
  std::fill(column_busy_.begin(), column_busy_.end(), 0);
  std::fill(row_first_.begin(), row_first_.end(), 0);
  std::fill(column_first_.begin(), column_first_.end(), 0);
  for (const uint32_t entry : entries_) Place(entry, left[entry]);
}

// By the leading 16 bits: entries that agree in them stay in order of their place, which is close enough. Many are
// sorted in two passes over them; few, by insertion.
void GreedyCover::Sort(const int32_t* left) {
  const auto entries = static_cast<uint32_t>(servers_) * static_cast<uint32_t>(servers_);
  entries_.clear();
  int32_t largest = 1;
  for (uint32_t entry = 0; entry < entries; ++entry) {
    if (left[entry] == 0) continue;
    entries_.push_back(entry);
    largest = std::max(largest, left[entry]);
  }
  const int bits = 32 - __builtin_clz(static_cast<uint32_t>(largest));
  const int drop = std::max(bits - 2 * kDigitBits, 0);
  if (entries_.size() <= kFewEntries) return SortFew(drop, left);
  sorted_.resize(entries_.size());
  SortBy(drop, entries_, &sorted_, left);
  SortBy(drop + kDigitBits, sorted_, &entries_, left);
}

void GreedyCover::SortFew(int shift, const int32_t* left) {
  const auto count = static_cast<int32_t>(entries_.size());
  for (int32_t i = 1; i < count; ++i) {
    const uint32_t entry = entries_[i];
    const int32_t rows = left[entry] >> shift;
    int32_t at = i;
    for (; at > 0 && left[entries_[at - 1]] >> shift < rows; --at) entries_[at] = entries_[at - 1];
    entries_[at] = entry;
  }
}

void GreedyCover::SortBy(int shift, const std::vector<uint32_t>& from, std::vector<uint32_t>* to, const int32_t* left) {
  uint32_t first[kDigits + 1] = {};
  // The largest digit comes first.
  const auto digit = [&](uint32_t entry) {
    return kDigits - 1 - ((static_cast<uint32_t>(left[entry]) >> shift) & (kDigits - 1));
  };
  for (const uint32_t entry : from) ++first[digit(entry) + 1];
  for (uint32_t i = 0; i < kDigits; ++i) first[i + 1] += first[i];
  for (const uint32_t entry : from) (*to)[first[digit(entry)]++] = entry;
}

void GreedyCover::Place(uint32_t entry, int32_t rows) {
  const auto n = static_cast<uint32_t>(servers_);
  uint64_t* row = &row_busy_[static_cast<size_t>(entry / n) * words_];
  uint64_t* column = &column_busy_[static_cast<size_t>(entry % n) * words_];
  int32_t& row_first = row_first_[entry / n];
  int32_t& column_first = column_first_[entry % n];
  const int32_t stage = FirstFree(row, column, std::max(row_first, column_first));
  if (stage == count()) AddStage(0);
  if (rows > lengths_[stage]) {
    total_ += rows - lengths_[stage];
    lengths_[stage] = rows;
  }
  to_[static_cast<size_t>(stage) * n + entry / n] = static_cast<int16_t>(entry % n);
  SetBit(row, stage);
  SetBit(column, stage);
  while (row_first + 1 < words_ && ~row[row_first] == 0) ++row_first;
  while (column_first + 1 < words_ && ~column[column_first] == 0) ++column_first;
}

// There always is one: MaxStages.
int32_t GreedyCover::FirstFree(const uint64_t* row, const uint64_t* column, int32_t word) const {
  for (;; ++word) {
    const uint64_t free = ~(row[word] | column[word]);
    if (free != 0) return word * 64 + LowestBit(free);
  }
}

void GreedyCover::AddStage(int32_t rows) {
  lengths_.push_back(rows);
  to_.resize(to_.size() + servers_, kIdle);
  total_ += rows;
}

void GreedyCover::BuildShifts(const int32_t* left) {
  Clear();
  const int32_t n = servers_;
  for (int32_t shift = 1; shift < n; ++shift) {
    int32_t longest = 0;
    for (int32_t s = 0; s < n; ++s)
      longest = std::max(longest, left[s * n + (s + shift < n ? s + shift : s + shift - n)]);
    if (longest == 0) continue;
    AddStage(longest);
    int16_t* to = &to_[to_.size() - n];
    for (int32_t s = 0; s < n; ++s) {
      const int32_t d = s + shift < n ? s + shift : s + shift - n;
      if (left[s * n + d] != 0) to[s] = static_cast<int16_t>(d);
    }
  }
}

}  // namespace fastjax::planner
