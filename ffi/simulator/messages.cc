#include "simulator/messages.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "simulator/arrivals.h"

namespace fastjax::simulator {
namespace {

using planner::Transfer;

constexpr int32_t kPhaseBits = 2;
constexpr int32_t kStageBits = 64 - 2 * kDeviceBits - kPhaseBits;
static_assert(kStageBits >= 32);

uint64_t KeyOf(const Transfer& transfer) {
  uint64_t key = static_cast<uint64_t>(transfer.stage + 1) << kPhaseBits | static_cast<uint64_t>(transfer.phase);
  key = key << kDeviceBits | static_cast<uint64_t>(transfer.src);
  return key << kDeviceBits | static_cast<uint64_t>(transfer.dst);
}

// How rows are cut into pieces: as even as can be, longer ones first.
class Cut {
 public:
  Cut(int64_t rows, int32_t pieces) : pieces_(pieces), whole_(rows / pieces), longer_(rows % pieces) {}

  int32_t count() const { return whole_ > 0 ? pieces_ : static_cast<int32_t>(longer_); }
  int64_t Begin(int32_t piece) const { return piece * whole_ + std::min<int64_t>(piece, longer_); }
  int32_t PieceAt(int64_t row) const {
    const int64_t in_longer = longer_ * (whole_ + 1);
    return static_cast<int32_t>(row < in_longer ? row / (whole_ + 1) : longer_ + (row - in_longer) / whole_);
  }

 private:
  int32_t pieces_;
  int64_t whole_;
  int64_t longer_;
};

class Gatherer {
 public:
  Gatherer(const std::vector<Transfer>& transfers, int32_t pieces)
      : transfers_(transfers), pieces_(pieces), arrivals_(transfers) {}

  Messages Run() {
    bool sends_on = false;
    for (const Transfer& transfer : transfers_) {
      messages_.stages = std::max(messages_.stages, transfer.stage + 1);
      sends_on |= Moves(transfer) && IsSentOn(transfer);
    }
    if (messages_.stages > 1 || !sends_on) pieces_ = 1;
    Sort();
    messages_.of_transfers.assign(transfers_.size(), -1);
    messages_.last_of_transfers.assign(transfers_.size(), -1);
    for (size_t begin = 0, end = 0; begin < sorted_.size(); begin = end) {
      while (end < sorted_.size() && sorted_[end].first == sorted_[begin].first) ++end;
      AddMessages(begin, end);
    }
    seen_by_.assign(messages_.all.size(), -1);
    for (size_t begin = 0, end = 0; begin < sorted_.size(); begin = end) {
      while (end < sorted_.size() && sorted_[end].first == sorted_[begin].first) ++end;
      AwaitRows(begin, end);
    }
    return std::move(messages_);
  }

 private:
  using Range = Arrivals::Range;

  const Transfer& At(size_t place) const { return transfers_[static_cast<size_t>(sorted_[place].second)]; }
  Cut CutOf(const Transfer& transfer) const { return Cut(transfer.rows, pieces_); }

  void Sort() {
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (Moves(transfers_[i])) sorted_.emplace_back(KeyOf(transfers_[i]), static_cast<int32_t>(i));
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  // Those of the sorted transfers [begin, end), which are of one message but for pieces.
  void AddMessages(size_t begin, size_t end) {
    const auto first = static_cast<int32_t>(messages_.all.size());
    for (size_t place = begin; place < end; ++place) {
      const Transfer& transfer = At(place);
      const Cut cut = CutOf(transfer);
      const auto i = static_cast<size_t>(sorted_[place].second);
      messages_.of_transfers[i] = first;
      messages_.last_of_transfers[i] = first + cut.count() - 1;
      for (int32_t piece = 0; piece < cut.count(); ++piece) {
        const int32_t message = first + piece;
        if (message == static_cast<int32_t>(messages_.all.size())) {
          messages_.all.push_back(
              {transfer.phase, transfer.stage, piece, transfer.src, transfer.dst, sorted_[begin].second, 0});
        }
        messages_.all[static_cast<size_t>(message)].rows += cut.Begin(piece + 1) - cut.Begin(piece);
      }
    }
  }

  // Adds what those messages wait for.
  void AwaitRows(size_t begin, size_t end) {
    int32_t count = 0;
    ranges_.clear();
    for (size_t place = begin; place < end; ++place) {
      count = std::max(count, CutOf(At(place)).count());
      ranges_.push_back(IsSentOn(At(place)) ? arrivals_.Bringing(At(place)) : Range(0, 0));
    }
    for (int32_t piece = 0; piece < count; ++piece) {
      for (size_t place = begin; place < end; ++place) {
        if (piece < CutOf(At(place)).count()) AwaitPiece(At(place), piece, place, ranges_[place - begin]);
      }
    }
  }

  void AwaitPiece(const Transfer& transfer, int32_t piece, size_t place, const Range& range) {
    const auto message = messages_.of_transfers[static_cast<size_t>(sorted_[place].second)] + piece;
    const Cut cut = CutOf(transfer);
    const int64_t begin = transfer.first_row + cut.Begin(piece), end = transfer.first_row + cut.Begin(piece + 1);
    for (size_t k = range.first; k < range.second; ++k) {
      const Arrival& arrival = arrivals_[k];
      const int64_t from = std::max(begin, arrival.first_row), to = std::min(end, arrival.end_row);
      if (from >= to) continue;
      const Cut came = CutOf(transfers_[static_cast<size_t>(arrival.transfer)]);
      const int32_t first = messages_.of_transfers[static_cast<size_t>(arrival.transfer)];
      const int32_t last = came.PieceAt(to - 1 - arrival.first_row);
      for (int32_t each = came.PieceAt(from - arrival.first_row); each <= last; ++each) {
        const int32_t before = first + each;
        if (std::exchange(seen_by_[static_cast<size_t>(before)], message) == message) continue;
        messages_.edges.push_back({before, message});
      }
    }
  }

  const std::vector<Transfer>& transfers_;
  int32_t pieces_;
  std::vector<std::pair<uint64_t, int32_t>> sorted_;  // keys and numbers of transfers that move
  Arrivals arrivals_;
  std::vector<Range> ranges_;
  std::vector<int32_t> seen_by_;  // the last message that was found to wait for each
  Messages messages_;
};

}  // namespace

Messages GatherMessages(const std::vector<Transfer>& transfers, int32_t pieces) {
  return Gatherer(transfers, pieces).Run();
}

}  // namespace fastjax::simulator
