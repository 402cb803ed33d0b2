#include "simulator/arrivals.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>

namespace fastjax::simulator {
namespace {

using planner::Transfer;

uint64_t BlockOf(const Transfer& transfer) {
  return static_cast<uint64_t>(transfer.origin) << kDeviceBits | static_cast<uint64_t>(transfer.target);
}

uint64_t Where(uint64_t block, int32_t device) { return block << kDeviceBits | static_cast<uint64_t>(device); }
uint64_t TargetOf(uint64_t block) { return block << kDeviceBits | (block & ((1U << kDeviceBits) - 1)); }

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

}  // namespace

Arrivals::Arrivals(const std::vector<Transfer>& transfers) : transfers_(transfers) {
  Collect();
  CheckOnce();
  CheckStaying();
  CheckTargets();
}

void Arrivals::Collect() {
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (!Arrives(transfer)) continue;
    sorted_.push_back({Where(BlockOf(transfer), transfer.dst), transfer.first_row, transfer.first_row + transfer.rows,
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

// Transfers that move nothing say where rows are, and that the exchange has them.
void Arrivals::CheckStaying() const {
  for (const Transfer& transfer : transfers_) {
    if (transfer.src != transfer.dst || transfer.rows == 0) continue;
    if (IsSentOn(transfer)) Bringing(transfer);
    const uint64_t target = TargetOf(BlockOf(transfer));
    const Found found = Find({0, sorted_.size()}, target, transfer.first_row, transfer.first_row + transfer.rows);
    if (found.missing > 0) throw std::invalid_argument(NotOn(transfer, found.missing));
  }
}

void Arrivals::CheckTargets() const {
  Range block(0, 0);
  for (; block.first < sorted_.size(); block.first = block.second) {
    const uint64_t number = sorted_[block.first].where >> kDeviceBits;
    const uint64_t target = TargetOf(number);
    bool elsewhere = false;
    for (; block.second < sorted_.size() && sorted_[block.second].where >> kDeviceBits == number; ++block.second) {
      elsewhere |= sorted_[block.second].where != target;
    }
    for (size_t k = block.first; elsewhere && k < block.second; ++k) {
      const Arrival& arrival = sorted_[k];
      if (arrival.where == target) continue;
      const Found found = Find(block, target, arrival.first_row, arrival.end_row);
      const Transfer& transfer = transfers_[static_cast<size_t>(arrival.transfer)];
      if (found.missing > 0) throw std::invalid_argument(NotOn(transfer, found.missing));
    }
  }
}

Arrivals::Range Arrivals::Bringing(const Transfer& transfer) const {
  if (Moves(transfer) && transfer.src == transfer.target) {
    throw std::invalid_argument("rows of " + Block(transfer) + " are sent on by " + Route(transfer) +
                                ", though they are at their target");
  }
  const Found found = Find({0, sorted_.size()}, Where(BlockOf(transfer), transfer.src), transfer.first_row,
                           transfer.first_row + transfer.rows);
  if (found.missing > 0) throw std::invalid_argument(NotThere(transfer, found.missing));
  return found.range;
}

Arrivals::Found Arrivals::Find(const Range& among, uint64_t where, int64_t first_row, int64_t end_row) const {
  const auto begin = sorted_.begin() + static_cast<std::ptrdiff_t>(among.first);
  const auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(among.second);
  const auto after = [](const auto& sought, const Arrival& arrival) {
    return sought < std::pair(arrival.where, arrival.first_row);
  };
  auto from = std::upper_bound(begin, end, std::pair(where, first_row), after);
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

}  // namespace fastjax::simulator
