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

constexpr int32_t kDeviceBits = 15;  // of a device's number

// Whether anything is in flight; others are rows that stay where they are.
bool Moves(const Transfer& transfer) { return transfer.src != transfer.dst && transfer.rows > 0; }
bool IsSentOn(const Transfer& transfer) { return transfer.src != transfer.origin; }

// Rows of a block that come to a device.
struct Arrival {
  uint64_t where;  // block and device
  int64_t first_row;
  int64_t end_row;
  int32_t transfer;
};

// All arrivals of transfers whose rows come to no device twice, to their targets, and nowhere after those.
class Arrivals {
 public:
  using Range = std::pair<size_t, size_t>;

  // Throws std::invalid_argument, with words for the user, where rows come to a device twice, or not to their target,
  // or are said to be where they have not come. Devices must be below 2^15. `transfers` must stay.
  explicit Arrivals(const std::vector<Transfer>& transfers);

  const Arrival& operator[](size_t place) const { return sorted_[place]; }
  // Those that bring a transfer's rows to its sender. Throws std::invalid_argument where some do not come.
  Range Bringing(const Transfer& transfer) const;

 private:
  struct Found {
    Range range;
    int64_t missing;  // rows
  };

  void Collect();
  void CheckOnce() const;
  void CheckTargets() const;
  // Those that bring a transfer's rows to a device.
  Found Find(const Transfer& transfer, int32_t device) const;

  const std::vector<Transfer>& transfers_;
  std::vector<Arrival> sorted_;  // by block, device and row; they do not overlap
};

uint64_t Where(const Transfer& transfer, int32_t device) {
  const uint64_t block = static_cast<uint64_t>(transfer.origin) << kDeviceBits | static_cast<uint64_t>(transfer.target);
  return block << kDeviceBits | static_cast<uint64_t>(device);
}

// Rows that never leave their device are there at once: they have come.
bool Arrives(const Transfer& transfer) {
  const bool kept = transfer.origin == transfer.dst && transfer.dst == transfer.target;
  return transfer.rows > 0 && (transfer.src != transfer.dst || kept);
}

std::string Block(const Transfer& transfer) {
  return "block " + std::to_string(transfer.origin) + " -> " + std::to_string(transfer.target);
}

std::string Step(const Transfer& transfer) {
  return "(phase " + std::to_string(static_cast<int>(transfer.phase)) + ", stage " + std::to_string(transfer.stage) +
         ")";
}

std::string Twice(const Transfer& one, const Transfer& other) {
  const int64_t first = std::max(one.first_row, other.first_row);
  const int64_t last = std::min(one.first_row + one.rows, other.first_row + other.rows) - 1;
  std::string words =
      first == last ? "row " + std::to_string(first) : "rows " + std::to_string(first) + " to " + std::to_string(last);
  words += " of " + Block(one) + (first == last ? " comes" : " come") + " to device " + std::to_string(one.dst);
  return words + " twice: from device " + std::to_string(one.src) + " " + Step(one) + " and from device " +
         std::to_string(other.src) + " " + Step(other);
}

std::string Route(const Transfer& transfer) {
  return "device " + std::to_string(transfer.src) + " to device " + std::to_string(transfer.dst) + " " + Step(transfer);
}

std::string NotThere(const Transfer& transfer, int64_t missing) {
  return std::to_string(missing) + " rows of " + Block(transfer) + " are sent on by " + Route(transfer) +
         ", where no transfer brings them";
}

std::string NotOn(const Transfer& transfer, int64_t missing) {
  return std::to_string(missing) + " rows of " + Block(transfer) + " are sent from " + Route(transfer) +
         ", and no transfer brings them to device " + std::to_string(transfer.target);
}

Arrivals::Arrivals(const std::vector<Transfer>& transfers) : transfers_(transfers) {
  Collect();
  CheckOnce();
  CheckTargets();
}

void Arrivals::Collect() {
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (!Arrives(transfer)) continue;
    sorted_.push_back({Where(transfer, transfer.dst), transfer.first_row, transfer.first_row + transfer.rows,
                       static_cast<int32_t>(i)});
  }
  std::sort(sorted_.begin(), sorted_.end(), [](const Arrival& a, const Arrival& b) {
    return std::tie(a.where, a.first_row, a.transfer) < std::tie(b.where, b.first_row, b.transfer);
  });
}

void Arrivals::CheckOnce() const {
  const auto again = std::adjacent_find(sorted_.begin(), sorted_.end(), [](const Arrival& a, const Arrival& b) {
    return a.where == b.where && b.first_row < a.end_row;
  });
  if (again == sorted_.end()) return;
  throw std::invalid_argument(Twice(transfers_[static_cast<size_t>(again->transfer)],
                                    transfers_[static_cast<size_t>(std::next(again)->transfer)]));
}

void Arrivals::CheckTargets() const {
  for (const Transfer& transfer : transfers_) {
    if (transfer.rows == 0) continue;
    const bool moves = transfer.src != transfer.dst;
    // One that moves nothing says where rows are, and that the exchange has them.
    if (!moves && IsSentOn(transfer)) Bringing(transfer);
    if (moves && transfer.dst == transfer.target) continue;
    const Found found = Find(transfer, transfer.target);
    if (found.missing > 0) throw std::invalid_argument(NotOn(transfer, found.missing));
  }
}

Arrivals::Range Arrivals::Bringing(const Transfer& transfer) const {
  if (Moves(transfer) && transfer.src == transfer.target) {
    throw std::invalid_argument("rows of " + Block(transfer) + " are sent on by " + Route(transfer) +
                                ", though they are at their target");
  }
  const Found found = Find(transfer, transfer.src);
  if (found.missing > 0) throw std::invalid_argument(NotThere(transfer, found.missing));
  return found.range;
}

Arrivals::Found Arrivals::Find(const Transfer& transfer, int32_t device) const {
  const uint64_t where = Where(transfer, device);
  const int64_t first_row = transfer.first_row, end_row = transfer.first_row + transfer.rows;
  const auto begin = sorted_.begin(), end = sorted_.end();
  auto from = std::upper_bound(begin, end, std::pair(where, first_row), [](const auto& sought, const Arrival& arrival) {
    return sought < std::pair(arrival.where, arrival.first_row);
  });
  // Arrivals do not overlap, so that only the one before can reach into these rows.
  if (from != begin) --from;
  if (from != end && (from->where != where || from->end_row <= first_row)) ++from;
  auto to = from;
  int64_t missing = end_row - first_row;
  for (; to != end && to->where == where && to->first_row < end_row; ++to) {
    missing -= std::min(end_row, to->end_row) - std::max(first_row, to->first_row);
  }
  return {{static_cast<size_t>(from - sorted_.begin()), static_cast<size_t>(to - sorted_.begin())}, missing};
}

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
