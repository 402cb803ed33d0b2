#include "simulator/messages.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace fastjax::simulator {
namespace {

using planner::Transfer;

constexpr int32_t kDeviceBits = 15;
constexpr int32_t kPhaseBits = 2;
constexpr int32_t kStageBits = 64 - 2 * kDeviceBits - kPhaseBits;
static_assert(kStageBits >= 32);

bool Moves(const Transfer& transfer) { return transfer.src != transfer.dst && transfer.rows > 0; }
bool IsSentOn(const Transfer& transfer) { return transfer.src != transfer.origin; }

uint64_t Joined(int32_t origin, int32_t target, int32_t device) {
  return ((static_cast<uint64_t>(origin) << kDeviceBits | static_cast<uint64_t>(target)) << kDeviceBits) |
         static_cast<uint64_t>(device);
}

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

// Rows of a block that have come to a device.
struct Arrival {
  uint64_t where;  // block and device
  int64_t first_row;
  int64_t end_row;
  int32_t transfer;
};

std::string Words(const Transfer& transfer, int64_t missing) {
  return std::to_string(missing) + " rows of block " + std::to_string(transfer.origin) + " -> " +
         std::to_string(transfer.target) + " are sent on by device " + std::to_string(transfer.src) + " to device " +
         std::to_string(transfer.dst) + " (phase " + std::to_string(static_cast<int>(transfer.phase)) + ", stage " +
         std::to_string(transfer.stage) + "), where no transfer brings them";
}

class Gatherer {
 public:
  Gatherer(const std::vector<Transfer>& transfers, int32_t pieces) : transfers_(transfers), pieces_(pieces) {}

  Messages Run() {
    bool sends_on = false;
    for (const Transfer& transfer : transfers_) {
      messages_.stages = std::max(messages_.stages, transfer.stage + 1);
      sends_on |= Moves(transfer) && IsSentOn(transfer);
    }
    if (messages_.stages > 1 || !sends_on) pieces_ = 1;
    Sort();
    FindArrivals();
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
  using Range = std::pair<size_t, size_t>;  // of arrivals

  const Transfer& At(size_t place) const { return transfers_[static_cast<size_t>(sorted_[place].second)]; }
  Cut CutOf(const Transfer& transfer) const { return Cut(transfer.rows, pieces_); }

  void Sort() {
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (Moves(transfers_[i])) sorted_.emplace_back(KeyOf(transfers_[i]), static_cast<int32_t>(i));
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  void FindArrivals() {
    for (const auto& [key, i] : sorted_) {
      const Transfer& transfer = transfers_[static_cast<size_t>(i)];
      if (transfer.dst == transfer.target) continue;
      arrivals_.push_back({Joined(transfer.origin, transfer.target, transfer.dst), transfer.first_row,
                           transfer.first_row + transfer.rows, i});
    }
    std::sort(arrivals_.begin(), arrivals_.end(), [](const Arrival& a, const Arrival& b) {
      return std::tie(a.where, a.first_row, a.transfer) < std::tie(b.where, b.first_row, b.transfer);
    });
    const auto again = std::adjacent_find(arrivals_.begin(), arrivals_.end(), [](const Arrival& a, const Arrival& b) {
      return a.where == b.where && b.first_row < a.end_row;
    });
    if (again == arrivals_.end()) return;
    const Transfer& transfer = transfers_[static_cast<size_t>(std::next(again)->transfer)];
    throw std::invalid_argument("row " + std::to_string(transfer.first_row) + " of block " +
                                std::to_string(transfer.origin) + " -> " + std::to_string(transfer.target) +
                                " comes to device " + std::to_string(transfer.dst) + " twice");
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
      ranges_.push_back(IsSentOn(At(place)) ? FindRows(At(place)) : Range(0, 0));
    }
    for (int32_t piece = 0; piece < count; ++piece) {
      for (size_t place = begin; place < end; ++place) {
        if (piece < CutOf(At(place)).count()) AwaitPiece(At(place), piece, place, ranges_[place - begin]);
      }
    }
  }

  // The arrivals that bring a transfer's rows.
  Range FindRows(const Transfer& transfer) const {
    const uint64_t where = Joined(transfer.origin, transfer.target, transfer.src);
    const int64_t end_row = transfer.first_row + transfer.rows;
    const auto after = [](const auto& sought, const Arrival& arrival) {
      return sought < std::pair(arrival.where, arrival.first_row);
    };
    auto from = std::upper_bound(arrivals_.begin(), arrivals_.end(), std::pair(where, transfer.first_row), after);
    // Arrivals do not overlap, so that only the one before can reach into the transfer.
    if (from != arrivals_.begin()) --from;
    if (from != arrivals_.end() && (from->where != where || from->end_row <= transfer.first_row)) ++from;
    auto to = from;
    int64_t missing = transfer.rows;
    for (; to != arrivals_.end() && to->where == where && to->first_row < end_row; ++to) {
      missing -= std::min(end_row, to->end_row) - std::max(transfer.first_row, to->first_row);
    }
    if (missing > 0) throw std::invalid_argument(Words(transfer, missing));
    return {static_cast<size_t>(from - arrivals_.begin()), static_cast<size_t>(to - arrivals_.begin())};
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
  std::vector<Arrival> arrivals_;
  std::vector<Range> ranges_;
  std::vector<int32_t> seen_by_;  // the last message that was found to wait for each
  Messages messages_;
};

}  // namespace

Messages GatherMessages(const std::vector<Transfer>& transfers, int32_t pieces) {
  return Gatherer(transfers, pieces).Run();
}

}  // namespace fastjax::simulator
