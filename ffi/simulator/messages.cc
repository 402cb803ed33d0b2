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

using ArrivalRange = planner::Range<Arrival>;

// All arrivals of transfers whose rows come to no device twice, to their targets, and nowhere after those.
class Arrivals {
 public:
  // Throws std::invalid_argument, with words for the user, where rows come to a device twice, or not to their target,
  // or are said to be where they have not come. Devices must be below 2^15. `transfers` must stay.
  explicit Arrivals(const std::vector<Transfer>& transfers);

  // Those that bring a transfer's rows to its sender. Throws std::invalid_argument where some do not come.
  ArrivalRange Bringing(const Transfer& transfer) const;

 private:
  void Collect();
  void CheckOnce() const;
  void CheckTargets() const;
  // Those that bring a transfer's rows to a device, and how many rows none does.
  std::pair<ArrivalRange, int64_t> Find(const Transfer& transfer, int32_t device) const;

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
    const int64_t end_row = transfer.first_row + transfer.rows;
    sorted_.push_back({Where(transfer, transfer.dst), transfer.first_row, end_row, static_cast<int32_t>(i)});
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
  throw std::invalid_argument(Twice(transfers_[again->transfer], transfers_[std::next(again)->transfer]));
}

void Arrivals::CheckTargets() const {
  for (const Transfer& transfer : transfers_) {
    if (transfer.rows == 0) continue;
    const bool moves = transfer.src != transfer.dst;
    // One that moves nothing says where rows are, and that the exchange has them.
    if (!moves && IsSentOn(transfer)) Bringing(transfer);
    if (moves && transfer.dst == transfer.target) continue;
    const int64_t missing = Find(transfer, transfer.target).second;
    if (missing > 0) throw std::invalid_argument(NotOn(transfer, missing));
  }
}

ArrivalRange Arrivals::Bringing(const Transfer& transfer) const {
  if (Moves(transfer) && transfer.src == transfer.target) {
    throw std::invalid_argument("rows of " + Block(transfer) + " are sent on by " + Route(transfer) +
                                ", though they are at their target");
  }
  const auto [found, missing] = Find(transfer, transfer.src);
  if (missing > 0) throw std::invalid_argument(NotThere(transfer, missing));
  return found;
}

std::pair<ArrivalRange, int64_t> Arrivals::Find(const Transfer& transfer, int32_t device) const {
  const uint64_t where = Where(transfer, device);
  const int64_t first_row = transfer.first_row, end_row = transfer.first_row + transfer.rows;
  const Arrival* const end = sorted_.data() + sorted_.size();
  // Arrivals do not overlap, so their ends are in order too.
  const Arrival* const from = std::upper_bound(
      sorted_.data(), end, std::pair(where, first_row),
      [](const auto& sought, const Arrival& arrival) { return sought < std::pair(arrival.where, arrival.end_row); });
  const Arrival* to = from;
  int64_t missing = end_row - first_row;
  for (; to != end && to->where == where && to->first_row < end_row; ++to) {
    missing -= std::min(end_row, to->end_row) - std::max(first_row, to->first_row);
  }
  return {{from, to}, missing};
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
    ForEachMessage(&Gatherer::AddMessages);
    seen_by_.assign(messages_.all.size(), -1);
    ForEachMessage(&Gatherer::AwaitRows);
    return std::move(messages_);
  }

 private:
  const Transfer& At(size_t place) const { return transfers_[sorted_[place].second]; }
  Cut CutOf(const Transfer& transfer) const { return Cut(transfer.rows, pieces_); }

  void Sort() {
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (Moves(transfers_[i])) sorted_.emplace_back(KeyOf(transfers_[i]), static_cast<int32_t>(i));
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  // Of the sorted transfers, [begin, end) are of one message but for pieces.
  void ForEachMessage(void (Gatherer::*visit)(size_t begin, size_t end)) {
    for (size_t begin = 0, end = 0; begin < sorted_.size(); begin = end) {
      while (end < sorted_.size() && sorted_[end].first == sorted_[begin].first) ++end;
      (this->*visit)(begin, end);
    }
  }

  void AddMessages(size_t begin, size_t end) {
    const auto first = static_cast<int32_t>(messages_.all.size());
    for (size_t place = begin; place < end; ++place) {
      const Transfer& transfer = At(place);
      const Cut cut = CutOf(transfer);
      const int32_t i = sorted_[place].second;
      messages_.of_transfers[i] = first;
      messages_.last_of_transfers[i] = first + cut.count() - 1;
      for (int32_t piece = 0; piece < cut.count(); ++piece) {
        const int32_t message = first + piece;
        if (message == static_cast<int32_t>(messages_.all.size())) {
          messages_.all.push_back(
              {transfer.phase, transfer.stage, piece, transfer.src, transfer.dst, sorted_[begin].second, 0});
        }
        messages_.all[message].rows += cut.Begin(piece + 1) - cut.Begin(piece);
      }
    }
  }

  // Adds what those messages wait for.
  void AwaitRows(size_t begin, size_t end) {
    int32_t count = 0;
    ranges_.clear();
    for (size_t place = begin; place < end; ++place) {
      count = std::max(count, CutOf(At(place)).count());
      ranges_.push_back(IsSentOn(At(place)) ? arrivals_.Bringing(At(place)) : ArrivalRange());
    }
    for (int32_t piece = 0; piece < count; ++piece) {
      for (size_t place = begin; place < end; ++place) {
        if (piece < CutOf(At(place)).count()) AwaitPiece(At(place), piece, place, ranges_[place - begin]);
      }
    }
  }

  void AwaitPiece(const Transfer& transfer, int32_t piece, size_t place, const ArrivalRange& arrivals) {
    const auto message = messages_.of_transfers[sorted_[place].second] + piece;
    const Cut cut = CutOf(transfer);
    const int64_t begin = transfer.first_row + cut.Begin(piece), end = transfer.first_row + cut.Begin(piece + 1);
    for (const Arrival& arrival : arrivals) {
      const int64_t from = std::max(begin, arrival.first_row), to = std::min(end, arrival.end_row);
      if (from >= to) continue;
      const Cut came = CutOf(transfers_[arrival.transfer]);
      const int32_t first = messages_.of_transfers[arrival.transfer];
      const int32_t last = came.PieceAt(to - 1 - arrival.first_row);
      for (int32_t each = came.PieceAt(from - arrival.first_row); each <= last; ++each) {
        const int32_t before = first + each;
        if (std::exchange(seen_by_[before], message) == message) continue;
        messages_.edges.push_back({before, message});
      }
    }
  }

  const std::vector<Transfer>& transfers_;
  int32_t pieces_;
  std::vector<std::pair<uint64_t, int32_t>> sorted_;  // keys and numbers of transfers that move
  Arrivals arrivals_;
  std::vector<ArrivalRange> ranges_;
  std::vector<int32_t> seen_by_;  // the last message that was found to wait for each
  Messages messages_;
};

}  // namespace

Messages GatherMessages(const std::vector<Transfer>& transfers, int32_t pieces) {
  return Gatherer(transfers, pieces).Run();
}

}  // namespace fastjax::simulator
