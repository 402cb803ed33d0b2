#include "simulator/arrivals.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>

namespace fastjax::simulator {
namespace {

using planner::Transfer;

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

}  // namespace

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

}  // namespace fastjax::simulator
