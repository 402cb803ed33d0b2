#include "planner/cover.h"

#include <algorithm>
#include <tuple>

#include "planner/bits.h"
#include "planner/topology.h"

namespace fastjax::planner {
namespace {

constexpr size_t kFewEntries = 24;
constexpr size_t kSomeEntries = 256;
constexpr int kMaxDigitBits = 8;

}  // namespace

GreedyCover::GreedyCover(int32_t servers)
    : servers_(servers),
      words_(BitWords(static_cast<int32_t>(MaxStages(servers)))),
      row_busy_(static_cast<size_t>(servers) * words_),
      column_busy_(static_cast<size_t>(servers) * words_),
      row_first_(servers),
      column_first_(servers) {
  stages_.servers = servers;
}

void GreedyCover::Clear() {
  stages_.Clear();
  total_ = 0;
}

void GreedyCover::Build(const int32_t* left) {
  Clear();
  Collect(left);
  Sort();
  std::fill(row_busy_.begin(), row_busy_.end(), 0);
  std::fill(column_busy_.begin(), column_busy_.end(), 0);
  std::fill(row_first_.begin(), row_first_.end(), 0);
  std::fill(column_first_.begin(), column_first_.end(), 0);
  for (const Entry& entry : entries_) Place(entry);
}

// Whether a pair has anything left is as good as random, so each is written, and kept if it has.
void GreedyCover::Collect(const int32_t* left) {
  const auto n = static_cast<size_t>(servers_);
  entries_.resize(n * n + 1);
  Entry* next = entries_.data();
  largest_ = 1;
  for (size_t row = 0; row < n; ++row) {
    for (size_t column = 0; column < n; ++column) {
      const int32_t rows = left[row * n + column];
      *next = {rows, static_cast<int16_t>(row), static_cast<int16_t>(column)};
      next += rows != 0;
      largest_ = std::max(largest_, rows);
    }
  }
  entries_.resize(static_cast<size_t>(next - entries_.data()));
}

// By the leading bits, 16 if there are many, 12 if there are some: entries that agree in them stay in order of their
// place, which is close enough. They are sorted in two passes over them; few, by comparison.
void GreedyCover::Sort() {
  const int bits = 32 - __builtin_clz(static_cast<uint32_t>(largest_));
  const int digit_bits = entries_.size() <= kSomeEntries ? 6 : kMaxDigitBits;
  const int drop = std::max(bits - 2 * digit_bits, 0);
  if (entries_.size() <= kFewEntries) {
    const auto key = [=](const Entry& entry) { return std::tuple(-(entry.rows >> drop), entry.row, entry.column); };
    std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
    return;
  }
  sorted_.resize(entries_.size());
  SortBy(drop, digit_bits, entries_, &sorted_);
  SortBy(drop + digit_bits, digit_bits, sorted_, &entries_);
}

void GreedyCover::SortBy(int shift, int digit_bits, const std::vector<Entry>& from, std::vector<Entry>* to) {
  const uint32_t digits = 1U << digit_bits;
  uint32_t first[(1U << kMaxDigitBits) + 1];
  std::fill(first, first + digits + 1, 0);
  // The largest digit comes first.
  const auto digit = [&](const Entry& entry) { return ~(static_cast<uint32_t>(entry.rows) >> shift) & (digits - 1); };
  for (const Entry& entry : from) ++first[digit(entry) + 1];
  for (uint32_t i = 0; i < digits; ++i) first[i + 1] += first[i];
  for (const Entry& entry : from) (*to)[first[digit(entry)]++] = entry;
}

void GreedyCover::Place(const Entry& entry) {
  uint64_t* row = &row_busy_[static_cast<size_t>(entry.row) * words_];
  uint64_t* column = &column_busy_[static_cast<size_t>(entry.column) * words_];
  int32_t word = std::max(row_first_[entry.row], column_first_[entry.column]);
  uint64_t free = ~(row[word] | column[word]);
  if (free == 0) {
    word = NextFree(entry, word);
    free = ~(row[word] | column[word]);
  }
  const int32_t stage = word * 64 + LowestBit(free);
  if (stage == stages_.count()) AddStage(0);
  int64_t& length = stages_.weights[stage];
  if (entry.rows > length) {
    total_ += entry.rows - length;
    length = entry.rows;
  }
  stages_.to[static_cast<size_t>(stage) * servers_ + entry.row] = entry.column;
  row[word] |= free & -free;
  column[word] |= free & -free;
}

// The first word behind this one with a stage in which both are free: there is one (MaxStages). Words that are full are
// not looked at again.
int32_t GreedyCover::NextFree(const Entry& entry, int32_t word) {
  const uint64_t* row = &row_busy_[static_cast<size_t>(entry.row) * words_];
  const uint64_t* column = &column_busy_[static_cast<size_t>(entry.column) * words_];
  while (~row[row_first_[entry.row]] == 0) ++row_first_[entry.row];
  while (~column[column_first_[entry.column]] == 0) ++column_first_[entry.column];
  word = std::max({word, row_first_[entry.row], column_first_[entry.column]});
  while (~(row[word] | column[word]) == 0) ++word;
  return word;
}

void GreedyCover::AddStage(int32_t rows) {
  stages_.weights.push_back(rows);
  stages_.to.resize(stages_.to.size() + servers_, kIdle);
  total_ += rows;
}

void GreedyCover::BuildShifts(const int32_t* left) {
  Clear();
  const int32_t n = servers_;
  for (int32_t shift = 1; shift < n; ++shift) {
    int32_t longest = 0;
    for (int32_t s = 0; s < n; ++s) longest = std::max(longest, left[s * n + Wrapped(s + shift, n)]);
    if (longest == 0) continue;
    AddStage(longest);
    int16_t* to = &stages_.to[stages_.to.size() - n];
    for (int32_t s = 0; s < n; ++s) {
      const int32_t d = Wrapped(s + shift, n);
      if (left[s * n + d] != 0) to[s] = static_cast<int16_t>(d);
    }
  }
}

}  // namespace fastjax::planner
