#include "simulator/messages.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace fastjax::simulator {
namespace {

using planner::Phase;
using planner::Transfer;

constexpr int32_t kDeviceBits = 15;
constexpr int32_t kPieceBits = 6;
constexpr int32_t kPhaseBits = 2;
constexpr int32_t kStageBits = 64 - 2 * kDeviceBits - kPieceBits - kPhaseBits;
static_assert(kPieces <= 1 << kPieceBits);

// Part of a transfer.
struct Part {
  uint64_t key;  // of its message
  size_t transfer;
  int64_t first_row;
  int64_t rows;
};

// Rows of a block that have come to a device.
struct Arrival {
  uint64_t where;  // block and device
  int64_t first_row;
  int64_t end_row;
  int32_t message;
};

bool Moves(const Transfer& transfer) { return transfer.src != transfer.dst && transfer.rows > 0; }
bool IsSentOn(const Transfer& transfer) { return transfer.src != transfer.origin; }

uint64_t Joined(int32_t origin, int32_t target, int32_t device) {
  return ((static_cast<uint64_t>(origin) << kDeviceBits | static_cast<uint64_t>(target)) << kDeviceBits) |
         static_cast<uint64_t>(device);
}

uint64_t Key(const Transfer& transfer, int32_t piece) {
  const auto stage = static_cast<uint64_t>(transfer.stage + 1);
  if (stage >= uint64_t{1} << kStageBits) throw std::invalid_argument("a stage beyond 2^26 - 2");
  uint64_t key = stage << kPhaseBits | static_cast<uint64_t>(transfer.phase);
  key = key << kPieceBits | static_cast<uint64_t>(piece);
  key = key << kDeviceBits | static_cast<uint64_t>(transfer.src);
  return key << kDeviceBits | static_cast<uint64_t>(transfer.dst);
}

std::vector<Part> Cut(const std::vector<Transfer>& transfers, int32_t pieces) {
  std::vector<Part> parts;
  parts.reserve(transfers.size() * static_cast<size_t>(pieces));
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    if (!Moves(transfer)) continue;
    const int64_t whole = transfer.rows / pieces, more = transfer.rows % pieces;
    int64_t first = transfer.first_row;
    for (int32_t piece = 0; piece < pieces; ++piece) {
      const int64_t rows = whole + (piece < more ? 1 : 0);
      if (rows == 0) break;
      parts.push_back({Key(transfer, piece), i, first, rows});
      first += rows;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.key < b.key; });
  return parts;
}

std::string Words(const Transfer& transfer, int64_t missing) {
  return std::to_string(missing) + " rows of block " + std::to_string(transfer.origin) + " -> " +
         std::to_string(transfer.target) + " are sent on by device " + std::to_string(transfer.src) + " to device " +
         std::to_string(transfer.dst) + " (phase " + std::to_string(static_cast<int>(transfer.phase)) + ", stage " +
         std::to_string(transfer.stage) + "), where no transfer brings them";
}

std::vector<Arrival> FindArrivals(const std::vector<Transfer>& transfers, const std::vector<Part>& parts,
                                  const std::vector<int32_t>& message_of) {
  std::vector<Arrival> arrivals;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Transfer& transfer = transfers[parts[i].transfer];
    if (transfer.dst == transfer.target) continue;
    arrivals.push_back({Joined(transfer.origin, transfer.target, transfer.dst), parts[i].first_row,
                        parts[i].first_row + parts[i].rows, message_of[i]});
  }
  std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
    return std::tie(a.where, a.first_row, a.message) < std::tie(b.where, b.first_row, b.message);
  });
  return arrivals;
}

// Adds what a part that is sent on waits for.
void Await(const std::vector<Arrival>& arrivals, const Transfer& transfer, const Part& part, int32_t message,
           std::vector<Edge>* edges) {
  const uint64_t where = Joined(transfer.origin, transfer.target, transfer.src);
  const int64_t end = part.first_row + part.rows;
  auto at = std::upper_bound(
      arrivals.begin(), arrivals.end(), std::pair(where, part.first_row),
      [](const auto& sought, const Arrival& arrival) { return sought < std::pair(arrival.where, arrival.first_row); });
  // Arrivals of a block do not overlap, so that only the one before can reach into the part.
  if (at != arrivals.begin()) --at;
  int64_t come = 0;
  for (; at != arrivals.end() && std::pair(at->where, at->first_row) < std::pair(where, end); ++at) {
    if (at->where != where || at->end_row <= part.first_row) continue;
    come += std::min(end, at->end_row) - std::max(part.first_row, at->first_row);
    edges->push_back({at->message, message});
  }
  if (come < part.rows) throw std::invalid_argument(Words(transfer, part.rows - come));
}

void DropTwins(std::vector<Edge>* edges) {
  const auto pair = [](const Edge& edge) { return std::pair(edge.before, edge.after); };
  std::sort(edges->begin(), edges->end(), [&](const Edge& a, const Edge& b) { return pair(a) < pair(b); });
  const auto same = [&](const Edge& a, const Edge& b) { return pair(a) == pair(b); };
  edges->erase(std::unique(edges->begin(), edges->end(), same), edges->end());
}

}  // namespace

Messages GatherMessages(const std::vector<Transfer>& transfers) {
  Messages messages;
  bool sends_on = false;
  for (const Transfer& transfer : transfers) {
    messages.stages = std::max(messages.stages, transfer.stage + 1);
    sends_on |= Moves(transfer) && IsSentOn(transfer);
  }
  const std::vector<Part> parts = Cut(transfers, messages.stages <= 1 && sends_on ? kPieces : 1);
  std::vector<int32_t> message_of(parts.size());
  messages.of_transfers.assign(transfers.size(), -1);
  messages.last_of_transfers.assign(transfers.size(), -1);
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t from = parts[i].transfer;
    const Transfer& transfer = transfers[from];
    if (i == 0 || parts[i].key != parts[i - 1].key) {
      const auto piece = static_cast<int32_t>(parts[i].key >> (2 * kDeviceBits) & ((1U << kPieceBits) - 1));
      messages.all.push_back(
          {transfer.phase, transfer.stage, piece, transfer.src, transfer.dst, static_cast<int32_t>(from), 0});
    }
    messages.all.back().rows += parts[i].rows;
    message_of[i] = static_cast<int32_t>(messages.all.size()) - 1;
    if (messages.of_transfers[from] < 0) messages.of_transfers[from] = message_of[i];
    messages.last_of_transfers[from] = message_of[i];
  }
  const std::vector<Arrival> arrivals = FindArrivals(transfers, parts, message_of);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Transfer& transfer = transfers[parts[i].transfer];
    if (IsSentOn(transfer)) Await(arrivals, transfer, parts[i], message_of[i], &messages.edges);
  }
  DropTwins(&messages.edges);
  return messages;
}

}  // namespace fastjax::simulator
