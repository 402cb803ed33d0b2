#include "planner/stages.h"

#include <algorithm>
#include <limits>

#include "planner/bits.h"

namespace fastjax::planner {
namespace {

constexpr int16_t kNone = -1;

// The threshold goes an eighth below what a matching needs: at 40 servers that makes a tenth more stages in half the
// time.
constexpr int32_t kSlackShift = 3;

int64_t SquareRoot(int64_t value) {
  int64_t root = 0;
  for (int64_t bit = int64_t{1} << 31; bit != 0; bit >>= 1) {
    if ((root + bit) * (root + bit) <= value) root += bit;
  }
  return root;
}

}  // namespace

int64_t MaxMatchings(int32_t servers) {
  const int64_t n = servers;
  if (n == 1) return 0;
  return std::min(n * n - 2 * n + 2, 8 * n);
}

int64_t MaxStages(int32_t servers) {
  const int64_t n = servers;
  if (n == 1) return 0;
  const int64_t exact = n * n - 2 * n + 2;
  const int64_t shifts = MaxMatchings(servers) < exact ? n - 1 : 0;
  return MaxMatchings(servers) + shifts + kMaxExtraStages;
}

namespace {

__extension__ using Wide = __int128;

// a * b / c of numbers that are not negative, rounded down; int64's largest where the result does not fit.
int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  const Wide result = static_cast<Wide>(a) * b / c;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return result > kMax ? kMax : static_cast<int64_t>(result);
}

}  // namespace

// The exposed part of scale-up work is what feeds the first chunk and drains the last. If chunks hold g of the L rows,
// and moving a row's share inside a server takes 1/r of its time on the NIC, about 2 g / r is exposed and L / g
// start-ups are paid, each worth a rows of NIC time: best at L / g = sqrt(2 L / (r a)). Balance moves up to m - 1 rows
// of one device for a row on each rail when traffic is as skewed as can be and none when it is even, redistribution
// likewise; one row each is the middle ground taken here.
int64_t ChunkRows(const Topology& topology, int64_t row_bytes, int64_t total_rows) {
  if (topology.devices_per_server == 1 || total_rows == 0) return std::max<int64_t>(total_rows, 1);
  const int64_t startup_rows =
      std::clamp<int64_t>(MulDiv(topology.scale_out_latency_ns, topology.scale_out_bandwidth, 1'000'000'000) /
                              std::max<int64_t>(row_bytes, 1),
                          1, 2 * total_rows);
  const int64_t ratio = std::max<int64_t>(topology.scale_up_bandwidth / topology.scale_out_bandwidth, 1);
  const int64_t chunks = SquareRoot(2 * total_rows / startup_rows / ratio);
  return std::max<int64_t>(total_rows / std::clamp<int64_t>(chunks, 1, kMaxExtraStages), 1);
}

StageBuilder::StageBuilder(int32_t servers)
    : servers_(servers),
      words_(BitWords(servers)),
      row_room_(servers),
      column_room_(servers),
      left_(static_cast<size_t>(servers) * servers),
      usable_(static_cast<size_t>(servers) * words_),
      all_(words_),
      free_(words_),
      unseen_(words_),
      row_to_(servers),
      column_from_(servers),
      via_(servers),
      queue_(servers) {
  for (int32_t server = 0; server < servers; ++server) SetBit(all_.data(), server);
}

void StageBuilder::Build(const int64_t* rows, const Topology& topology, int64_t row_bytes) {
  peeled_.clear();
  weights_.clear();
  to_.clear();
  from_.clear();
  lengths_.clear();
  Pad(rows);
  if (total_ == 0) return;
  if (Decompose() > 0) AppendShifts(rows);
  Emit(rows, topology, row_bytes);
}

// Equal line sums without more stages than needed: idle servers first (the diagonal), then from the first row and
// column that have room onward, which fills 2 n - 1 entries at most.
void StageBuilder::Pad(const int64_t* rows) {
  const int32_t n = servers_;
  std::fill(row_room_.begin(), row_room_.end(), 0);
  std::fill(column_room_.begin(), column_room_.end(), 0);
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      const int64_t value = rows[s * n + d];
      left_[s * n + d] = value;
      row_room_[s] += value;
      column_room_[d] += value;
    }
  }
  total_ = std::max(*std::max_element(row_room_.begin(), row_room_.end()),
                    *std::max_element(column_room_.begin(), column_room_.end()));
  for (int32_t s = 0; s < n; ++s) {
    row_room_[s] = total_ - row_room_[s];
    column_room_[s] = total_ - column_room_[s];
    const int64_t idle = std::min(row_room_[s], column_room_[s]);
    left_[s * n + s] = idle;
    row_room_[s] -= idle;
    column_room_[s] -= idle;
  }
  for (int32_t s = 0, d = 0; s < n && d < n;) {
    const int64_t fill = std::min(row_room_[s], column_room_[d]);
    left_[s * n + d] += fill;
    row_room_[s] -= fill;
    column_room_[d] -= fill;
    if (row_room_[s] == 0) {
      ++s;
    } else {
      ++d;
    }
  }
}

// Every stage is a matching whose smallest entry is as large as possible, which is what makes stages few. Returns the
// line sum that is left when matchings run out.
int64_t StageBuilder::Decompose() {
  const int64_t max_matchings = MaxMatchings(servers_);
  std::fill(row_to_.begin(), row_to_.end(), kNone);
  std::fill(column_from_.begin(), column_from_.end(), kNone);
  free_ = all_;
  SetThreshold();
  int64_t remaining = total_;
  for (int64_t matchings = 0; remaining > 0 && matchings < max_matchings; ++matchings) {
    for (int32_t row = 0; row < servers_; ++row) {
      if (row_to_[row] == kNone) Augment(row);
    }
    remaining -= Peel();
  }
  return remaining;
}

// No matching has a smaller entry above the largest of some row or column.
void StageBuilder::SetThreshold() {
  const int32_t n = servers_;
  threshold_ = total_;
  std::fill(column_room_.begin(), column_room_.end(), 0);
  for (int32_t row = 0; row < n; ++row) {
    int64_t largest = 0;
    for (int32_t column = 0; column < n; ++column) {
      const int64_t left = left_[row * n + column];
      largest = std::max(largest, left);
      column_room_[column] = std::max(column_room_[column], left);
    }
    threshold_ = std::min(threshold_, largest);
  }
  threshold_ = std::min(threshold_, *std::min_element(column_room_.begin(), column_room_.end()));
  std::fill(usable_.begin(), usable_.end(), 0);
  for (int32_t row = 0; row < n; ++row) {
    for (int32_t column = 0; column < n; ++column) {
      usable(row)[column / 64] |= uint64_t{left_[row * n + column] >= threshold_} << (column % 64);
    }
  }
}

// Gives `root` a column, and other rows on the way another one. Breadth-first; a search that fails goes on after the
// threshold came down.
void StageBuilder::Augment(int32_t root) {
  for (int32_t word = 0; word < words_; ++word) unseen_[word] = all_[word];
  queued_ = 0;
  queue_[queued_++] = static_cast<int16_t>(root);
  for (int32_t head = 0;; ++head) {
    if (head == queued_) {
      LowerThreshold();
      head = 0;
    }
    const int16_t row = queue_[head];
    const int32_t open = FirstCommon(usable(row), free_.data(), words_);
    if (open >= 0) {
      ClearBit(free_.data(), open);
      via_[open] = row;
      return Flip(static_cast<int16_t>(open));
    }
    TakeCommon(usable(row), unseen_.data(), words_, [&](int32_t column) {
      via_[column] = row;
      queue_[queued_++] = column_from_[column];
    });
  }
}

// A search that fails has reached one row more than columns, so a matching must use an entry of these rows in another
// column: the threshold goes down to the largest of them. Other rows learn of entries that now reach it when a search
// that fails includes them; until then they have fewer choices, and the threshold is right all the same.
void StageBuilder::LowerThreshold() {
  const int32_t n = servers_;
  int64_t largest = 0;
  for (int32_t i = 0; i < queued_; ++i) {
    const int64_t* row = &left_[static_cast<size_t>(queue_[i]) * n];
    ForEachBit(unseen_.data(), words_, [&](int32_t column) { largest = std::max(largest, row[column]); });
  }
  threshold_ = std::min(threshold_, largest - (largest >> kSlackShift));
  for (int32_t i = 0; i < queued_; ++i) {
    const int64_t* row = &left_[static_cast<size_t>(queue_[i]) * n];
    uint64_t* bits = usable(queue_[i]);
    ForEachBit(unseen_.data(), words_,
               [&](int32_t column) { bits[column / 64] |= uint64_t{row[column] >= threshold_} << (column % 64); });
  }
}

// Along the path by which the search reached a free column, each row takes the column behind it.
void StageBuilder::Flip(int16_t column) {
  while (column != kNone) {
    const int16_t row = via_[column];
    const int16_t before = row_to_[row];
    row_to_[row] = column;
    column_from_[column] = row;
    column = before;
  }
}

// Moves as much as every pair of the matching has, and frees those that fell below the threshold.
int64_t StageBuilder::Peel() {
  const int32_t n = servers_;
  int64_t weight = left_[row_to_[0]];
  for (int32_t row = 1; row < n; ++row) weight = std::min(weight, left_[row * n + row_to_[row]]);
  peeled_.insert(peeled_.end(), row_to_.begin(), row_to_.end());
  weights_.push_back(weight);
  for (int32_t row = 0; row < n; ++row) {
    const int32_t column = row_to_[row];
    int64_t& left = left_[row * n + column];
    left -= weight;
    if (left >= threshold_) continue;
    ClearBit(usable(row), column);
    SetBit(free_.data(), column);
    row_to_[row] = kNone;
    column_from_[column] = kNone;
  }
  return weight;
}

// left_ becomes the real rows that no matching carries.
void StageBuilder::SubtractMatchings(const int64_t* rows) {
  const int32_t n = servers_;
  std::copy(rows, rows + left_.size(), left_.begin());
  for (size_t i = 0; i < weights_.size(); ++i) {
    for (int32_t s = 0; s < n; ++s) {
      int64_t& left = left_[s * n + peeled_[i * n + s]];
      left = std::max<int64_t>(left - weights_[i], 0);
    }
  }
}

void StageBuilder::AppendShifts(const int64_t* rows) {
  const int32_t n = servers_;
  SubtractMatchings(rows);
  for (int32_t shift = 1; shift < n; ++shift) {
    int64_t longest = 0;
    for (int32_t s = 0; s < n; ++s) longest = std::max(longest, left_[s * n + (s + shift) % n]);
    if (longest == 0) continue;
    for (int32_t s = 0; s < n; ++s) peeled_.push_back(static_cast<int16_t>((s + shift) % n));
    weights_.push_back(longest);
  }
}

// Matchings come out longest first. The longest goes into the middle, with shorter ones before and behind it in turn:
// what feeds the first stage and what drains the last is the scale-up work that nothing hides.
void StageBuilder::Emit(const int64_t* rows, const Topology& topology, int64_t row_bytes) {
  const int32_t count = static_cast<int32_t>(weights_.size());
  const int64_t chunk_rows = ChunkRows(topology, row_bytes, total_);
  std::copy(rows, rows + left_.size(), left_.begin());
  int64_t extra = kMaxExtraStages;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t rising = 2 * ((count - 1) / 2 - i);
    const int32_t matching = rising >= 0 ? rising : -rising - 1;
    const int64_t weight = weights_[matching];
    const int64_t most = std::min<int64_t>(kMaxChunksPerStage, extra + 1);
    const int64_t chunks = std::clamp<int64_t>(weight / chunk_rows, 1, most);
    int64_t emitted = 0;
    int64_t sent = 0;
    for (int64_t chunk = 1; chunk <= chunks; ++chunk) {
      const int64_t until = weight / chunks * chunk + weight % chunks * chunk / chunks;
      emitted += EmitStage(&peeled_[static_cast<size_t>(matching) * servers_], until - sent);
      sent = until;
    }
    extra -= std::max<int64_t>(emitted - 1, 0);
  }
}

// Returns whether any pair had rows left for the stage; padding is not sent.
bool StageBuilder::EmitStage(const int16_t* matching, int64_t length) {
  const int32_t n = servers_;
  const size_t first = to_.size();
  int64_t longest = 0;
  to_.resize(first + n, kIdle);
  from_.resize(first + n, kIdle);
  for (int32_t s = 0; s < n; ++s) {
    const int16_t d = matching[s];
    int64_t& left = left_[s * n + d];
    if (left == 0) continue;
    const int64_t moved = std::min(left, length);
    left -= moved;
    longest = std::max(longest, moved);
    to_[first + s] = d;
    from_[first + d] = static_cast<int16_t>(s);
  }
  if (longest == 0) {
    to_.resize(first);
    from_.resize(first);
    return false;
  }
  lengths_.push_back(length);
  return true;
}

}  // namespace fastjax::planner
