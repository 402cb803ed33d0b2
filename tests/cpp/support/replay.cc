#include "support/replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Topology;
using planner::Transfer;

// What follows may look things up by device.
bool CheckDevices(const Topology& topology, const Transfer& transfer) {
  bool good = true;
  for (const int32_t device : {transfer.src, transfer.dst, transfer.origin, transfer.target}) {
    good = CHECK_GE(device, 0) && CHECK_LT(device, topology.devices()) && good;
  }
  return good;
}

// Rows that one transfer wrote to staging, from the key of the map on. Stages overlap when a plan is executed, so a row
// that was ever written is not free again.
struct Held {
  int64_t end;
  const Transfer* writer;
  int64_t row;  // of the block
  bool read;
};

using RangeStaging = std::vector<std::map<int64_t, Held>>;

// Consecutive rows of staging may have come by several transfers, and leave by several.
bool ReadRange(const Transfer& transfer, RangeStaging* staging) {
  if (transfer.src_row == Transfer::kInPlace) return CHECK_EQ(transfer.src, transfer.origin);
  std::map<int64_t, Held>& held = (*staging)[transfer.src];
  const int64_t end = transfer.src_row + transfer.rows;
  for (int64_t at = transfer.src_row; at < end;) {
    auto range = held.upper_bound(at);
    if (!CHECK(range != held.begin())) return false;
    --range;
    const int64_t begin = range->first;
    const Held found = range->second;
    if (!CHECK_LT(at, found.end)) return false;
    const bool good = CHECK(!found.read) && CHECK_EQ(found.writer->stage, transfer.stage) &&
                      CHECK_EQ(found.writer->origin, transfer.origin) &&
                      CHECK_EQ(found.writer->target, transfer.target) &&
                      CHECK_EQ(found.row + at - begin, transfer.first_row + at - transfer.src_row);
    if (!good) return false;
    const int64_t until = std::min(end, found.end);
    if (begin < at) range->second.end = at;
    held.insert_or_assign(at, Held{until, found.writer, found.row + at - begin, true});
    if (until < found.end) held.emplace(until, Held{found.end, found.writer, found.row + until - begin, false});
    at = until;
  }
  return true;
}

using Range = std::pair<int64_t, int64_t>;

bool WriteRange(const Transfer& transfer, int64_t staging_rows, RangeStaging* staging, std::vector<Range>* delivered) {
  const int64_t row = transfer.first_row;
  if (transfer.dst_row == Transfer::kInPlace) {
    delivered->push_back({row, row + transfer.rows});
    return CHECK_EQ(transfer.dst, transfer.target);
  }
  const int64_t begin = transfer.dst_row;
  const int64_t end = begin + transfer.rows;
  if (!CHECK_GE(begin, 0) || !CHECK_LE(end, staging_rows)) return false;
  std::map<int64_t, Held>& held = (*staging)[transfer.dst];
  const auto behind = held.lower_bound(begin);
  if (behind != held.end() && !CHECK_LE(end, behind->first)) return false;
  if (behind != held.begin() && !CHECK_LE(std::prev(behind)->second.end, begin)) return false;
  held.emplace_hint(behind, begin, Held{end, &transfer, row, false});
  return true;
}

void CheckTiles(std::vector<Range>* ranges, int64_t rows) {
  std::sort(ranges->begin(), ranges->end());
  int64_t covered = 0;
  for (const Range& range : *ranges) {
    if (!CHECK_EQ(range.first, covered)) return;
    covered = range.second;
  }
  CHECK_EQ(covered, rows);
}

__extension__ using Wide = __int128;

// What one server pair sends, in all and on each rail.
struct Pair {
  int64_t rows = 0;
  std::vector<int64_t> carried;
};

std::vector<Pair> SumPairs(const Topology& topology, const Matrix& traffic) {
  const int32_t n = topology.servers;
  const int32_t devices = topology.devices();
  std::vector<Pair> pairs(static_cast<size_t>(n) * n);
  for (Pair& pair : pairs) pair.carried.resize(topology.devices_per_server);
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      if (topology.server_of(i) == topology.server_of(j)) continue;
      pairs[topology.server_of(i) * n + topology.server_of(j)].rows += traffic[static_cast<size_t>(i) * devices + j];
    }
  }
  return pairs;
}

// Bytes/s of each rail from server s to server d: of the slower of its two NICs.
std::vector<int64_t> RailRates(const Topology& topology, int32_t s, int32_t d) {
  std::vector<int64_t> rates;
  for (int32_t rail = 0; rail < topology.devices_per_server; ++rail) {
    rates.push_back(
        std::min(topology.nic_bandwidth(topology.device(s, rail)), topology.nic_bandwidth(topology.device(d, rail))));
  }
  return rates;
}

int64_t FastestNic(const Topology& topology, int32_t server) {
  int64_t fastest = 0;
  for (int32_t local = 0; local < topology.devices_per_server; ++local) {
    fastest = std::max(fastest, topology.nic_bandwidth(topology.device(server, local)));
  }
  return fastest;
}

bool AnyRail(const std::vector<int64_t>& rates) {
  return std::any_of(rates.begin(), rates.end(), [](int64_t rate) { return rate > 0; });
}

void CheckShares(const Pair& pair, const std::vector<int64_t>& rates) {
  Wide sum = 0;
  for (const int64_t rate : rates) sum += rate;
  const bool equal = std::count(rates.begin(), rates.end(), rates[0]) == static_cast<int64_t>(rates.size());
  for (size_t rail = 0; rail < rates.size(); ++rail) {
    // Rates below 2^62 and fewer rows than 2^62: the product fits.
    const Wide share = static_cast<Wide>(pair.rows) * rates[rail];
    const auto down = static_cast<int64_t>(share / sum);
    const int64_t up = down + (share % sum != 0);
    const int64_t slack = equal || rates[rail] == 0 ? 0 : 1;
    CHECK_GE(pair.carried[rail], std::min(down, up - slack));
    CHECK_LE(pair.carried[rail], std::max(up, down + slack));
  }
}

}  // namespace

void CheckReplay(const Topology& topology, const Matrix& traffic, const std::vector<Transfer>& transfers,
                 const std::vector<int64_t>& staging_rows) {
  const int32_t devices = topology.devices();
  RangeStaging staging(devices);
  std::vector<std::vector<Range>> delivered(traffic.size());
  std::vector<std::vector<Range>> crossed(traffic.size());
  for (const Transfer& transfer : transfers) {
    if (!CheckDevices(topology, transfer) || !CHECK_GT(transfer.rows, 0)) return;
    const size_t block = static_cast<size_t>(transfer.origin) * devices + transfer.target;
    if (!ReadRange(transfer, &staging)) return;
    if (!WriteRange(transfer, staging_rows[transfer.dst], &staging, &delivered[block])) return;
    if (topology.server_of(transfer.src) == topology.server_of(transfer.dst)) continue;
    crossed[block].push_back({transfer.first_row, transfer.first_row + transfer.rows});
  }
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      const size_t block = static_cast<size_t>(i) * devices + j;
      CheckTiles(&delivered[block], traffic[block]);
      CheckTiles(&crossed[block], topology.server_of(i) == topology.server_of(j) ? 0 : traffic[block]);
    }
  }
  for (const auto& held : staging) {
    const auto stuck = [](const auto& range) { return !range.second.read; };
    CHECK_EQ(std::count_if(held.begin(), held.end(), stuck), 0);
  }
}

void CheckShape(const Topology& topology, const std::vector<Transfer>& transfers, int32_t stages) {
  std::vector<int32_t> carried;  // ascending, since stages are in order
  std::tuple<int32_t, int32_t> previous = {-1, 0};
  for (const Transfer& transfer : transfers) {
    if (!CheckDevices(topology, transfer)) return;
    const bool same_server = topology.server_of(transfer.src) == topology.server_of(transfer.dst);
    const bool stays = topology.server_of(transfer.origin) == topology.server_of(transfer.target);
    const std::tuple<int32_t, int32_t> place = {transfer.stage, static_cast<int32_t>(transfer.phase)};
    CHECK(previous <= place);
    previous = place;
    CHECK_EQ(same_server, transfer.phase != Phase::kScaleOut);
    CHECK_EQ(transfer.stage == -1, transfer.phase == Phase::kLocal);
    CHECK_EQ(stays, transfer.phase == Phase::kLocal);
    CHECK_GE(transfer.stage, -1);
    CHECK_LT(transfer.stage, stages);
    if (transfer.phase == Phase::kLocal) {
      CHECK_EQ(transfer.src, transfer.origin);
      CHECK_EQ(transfer.dst, transfer.target);
    } else {
      CHECK_NE(transfer.src, transfer.dst);
    }
    // A row is read from the operand by its first hop only and written to the output by its last hop only.
    CHECK_EQ(transfer.src_row == Transfer::kInPlace, transfer.src == transfer.origin);
    CHECK_EQ(transfer.dst_row == Transfer::kInPlace, transfer.dst == transfer.target);
    if (transfer.phase == Phase::kBalance) CHECK_EQ(transfer.src, transfer.origin);
    if (transfer.phase == Phase::kRedistribute) CHECK_EQ(transfer.dst, transfer.target);
    if (transfer.phase != Phase::kScaleOut) continue;
    CHECK_EQ(topology.server_of(transfer.src), topology.server_of(transfer.origin));
    CHECK_EQ(topology.server_of(transfer.dst), topology.server_of(transfer.target));
    if (carried.empty() || carried.back() != transfer.stage) carried.push_back(transfer.stage);
  }
  CHECK_EQ(static_cast<int32_t>(carried.size()), stages);
}

void CheckOneToOne(const Topology& topology, const std::vector<Transfer>& transfers) {
  constexpr int32_t kNobody = -1;
  std::vector<int32_t> receiver;  // of a device in the stage at hand
  std::vector<int32_t> sender;
  int32_t stage = -1;
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    if (!CheckDevices(topology, transfer) || !CHECK_GE(transfer.stage, stage)) return;
    if (transfer.stage != stage) {
      stage = transfer.stage;
      receiver.assign(topology.devices(), kNobody);
      sender.assign(topology.devices(), kNobody);
    }
    CHECK_NE(topology.server_of(transfer.src), topology.server_of(transfer.dst));
    if (receiver[transfer.src] != kNobody) CHECK_EQ(receiver[transfer.src], transfer.dst);
    if (sender[transfer.dst] != kNobody) CHECK_EQ(sender[transfer.dst], transfer.src);
    receiver[transfer.src] = transfer.dst;
    sender[transfer.dst] = transfer.src;
  }
}

void CheckRails(const Topology& topology, const std::vector<Transfer>& transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    const int32_t source = topology.server_of(transfer.src);
    const int32_t target = topology.server_of(transfer.dst);
    const std::vector<int64_t> rates = RailRates(topology, source, target);
    if (AnyRail(rates)) {
      CHECK_EQ(topology.local_of(transfer.src), topology.local_of(transfer.dst));
      CHECK_GT(rates[topology.local_of(transfer.src)], 0);
    } else {
      CHECK_EQ(topology.nic_bandwidth(transfer.src), FastestNic(topology, source));
      CHECK_EQ(topology.nic_bandwidth(transfer.dst), FastestNic(topology, target));
    }
  }
}

void CheckBalance(const Topology& topology, const Matrix& traffic, const std::vector<Transfer>& transfers) {
  CheckRails(topology, transfers);
  const int32_t n = topology.servers;
  std::vector<Pair> pairs = SumPairs(topology, traffic);
  for (const Transfer& transfer : transfers) {
    if (transfer.phase != Phase::kScaleOut) continue;
    Pair& pair = pairs[topology.server_of(transfer.src) * n + topology.server_of(transfer.dst)];
    pair.carried[topology.local_of(transfer.src)] += transfer.rows;
  }
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      const std::vector<int64_t> rates = RailRates(topology, s, d);
      if (s != d && AnyRail(rates)) CheckShares(pairs[s * n + d], rates);
    }
  }
}

std::vector<Transfer> Reversed(const std::vector<Transfer>& transfers) {
  std::vector<Transfer> reversed(transfers.rbegin(), transfers.rend());
  for (Transfer& transfer : reversed) {
    std::swap(transfer.src, transfer.dst);
    std::swap(transfer.origin, transfer.target);
    std::swap(transfer.src_row, transfer.dst_row);
    if (transfer.phase == Phase::kBalance) {
      transfer.phase = Phase::kRedistribute;
    } else if (transfer.phase == Phase::kRedistribute) {
      transfer.phase = Phase::kBalance;
    }
  }
  return reversed;
}

}  // namespace fastjax::test
