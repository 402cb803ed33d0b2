#include "planner/tiles.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "planner/pricing.h"

// The first step of FAST (arXiv 2505.09764): the traffic matrix of n m devices is cut into n x n tiles of m x m blocks.
// Balance inside servers makes the rails of a pair carry what they are told, whoever sends it, so all that planning
// between servers needs of a tile is its sum: an (n m) x (n m) problem becomes one of n x n. Everything else here is
// one pass over the matrix, the only work whose time grows with the square of the devices:
//
//   quota     rows that a rail carries of a tile. A tile's quotas add up to its rows, and those of equal NICs differ by
//             one at most.
//   units     how long a tile takes its fullest rail, in rows of the fastest NIC: the entries of the server matrix.
//   load      how many rows the busiest device moves inside its server before and behind the crossing, estimated from
//             the sums over rows, columns and the diagonal, without the rail assignment, which comes later and only for
//             the tiles of devices that are listed.

namespace fastjax::planner {
namespace {

// GCC and clang have these for every processor.
using Two = int64_t __attribute__((vector_size(16)));

Two LoadTwo(const int64_t* from) {
  Two two;
  std::memcpy(&two, from, sizeof(two));
  return two;
}

void StoreTwo(Two two, int64_t* to) { std::memcpy(to, &two, sizeof(two)); }

}  // namespace

Tiles::Tiles(const Topology& topology, std::unique_ptr<RailFiller> filler, Quotas quotas)
    : topology_(topology),
      kind_(quotas),
      servers_(topology.servers),
      m_(topology.devices_per_server),
      fastest_nic_(std::max<int64_t>(topology.fastest_nic(), 1)),
      slowest_nic_(topology.slowest_counted_nic()),
      filler_(std::move(filler)),
      staging_rows_(topology.servers),
      row_sums_(topology.devices_per_server),
      column_sums_(topology.devices_per_server),
      diagonal_(topology.devices_per_server),
      quotas_(topology.devices_per_server) {
  const size_t pairs = static_cast<size_t>(servers_) * servers_;
  for (auto* by_pair : {&sums_, &units_, &most_rows_, &send_base_, &receive_base_}) by_pair->resize(pairs);
  loads_.resize(pairs);
  if (!topology_.equal_nics() && kind_ == Quotas::kEven) SetCrossed();
}

void Tiles::SetCrossed() {
  crossed_.resize(sums_.size());
  for (int32_t server = 0; server < servers_; ++server) {
    const int64_t* nics = &topology_.nic_bandwidths[topology_.device(server, 0)];
    best_nic_.push_back(static_cast<int32_t>(std::max_element(nics, nics + m_) - nics));
  }
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) {
      bool shared = false;
      for (int32_t rail = 0; rail < m_; ++rail) {
        shared |= topology_.nic_bandwidth(topology_.device(source, rail)) > 0 &&
                  topology_.nic_bandwidth(topology_.device(target, rail)) > 0;
      }
      crossed_[PairOf(source, target)] = !shared;
    }
  }
}

void Tiles::Plan(const int64_t* traffic) {
  traffic_ = traffic;
  block_bound_ = 0;
  local_rows_ = 0;
  if (kind_ == Quotas::kOrigins) nic_rows_.assign(2 * static_cast<size_t>(topology_.devices()), 0);
  balanced_.assign(static_cast<size_t>(topology_.devices()), 0);
  redistributed_.assign(static_cast<size_t>(topology_.devices()), 0);
  if (counts_devices_) {
    sent_rows_.assign(static_cast<size_t>(topology_.devices()), 0);
    received_rows_.assign(static_cast<size_t>(topology_.devices()), 0);
  }
  // Eight is what most servers have.
  for (int32_t source = 0; source < servers_; ++source) m_ == 8 ? PlanServer<8>(source) : PlanServer<0>(source);
  SetStaging();
}

Tiles::Busiest Tiles::FindBusiest() const {
  Busiest busiest;
  for (int32_t server = 0; server < servers_; ++server) {
    Busiest out, in;
    for (int32_t other = 0; other < servers_; ++other) {
      const int32_t to = PairOf(server, other), from = PairOf(other, server);
      out.units += units_[to];
      in.units += units_[from];
      busiest.rows_of_pair = std::max(busiest.rows_of_pair, sums_[to]);
      out.peers += sums_[to] != 0 ? 1 : 0;
      in.peers += sums_[from] != 0 ? 1 : 0;
    }
    busiest.units = std::max({busiest.units, out.units, in.units});
    busiest.peers = std::max({busiest.peers, out.peers, in.peers});
  }
  // A device that sends much to one server may send little to another: pairs' own sums say too much.
  if (kind_ == Quotas::kOrigins) busiest.units = UnitsOfBusiestNic();
  return busiest;
}

Tiles::Inside Tiles::FindInside() const {
  Inside inside;
  inside.balance = *std::max_element(balanced_.begin(), balanced_.end());
  inside.redistribute = *std::max_element(redistributed_.begin(), redistributed_.end());
  for (size_t pair = 0; pair < units_.size(); ++pair) {
    inside.units += units_[pair];
    inside.balanced_units += units_[pair] - loads_[pair].balance.units;
    inside.home_units += units_[pair] - loads_[pair].redistribute.units;
  }
  return inside;
}

void Tiles::CountRowsOfNics(int32_t source, int32_t target) {
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int32_t sends = topology_.device(source, rail);
    const int32_t receives = topology_.devices() + topology_.device(target, rail);
    nic_rows_[sends] += quotas_[rail];
    nic_rows_[receives] += quotas_[rail];
  }
}

int64_t Tiles::UnitsOfBusiestNic() const {
  Wide units = 0;
  for (size_t i = 0; i < nic_rows_.size(); ++i) {
    const auto device = static_cast<int32_t>(i % static_cast<size_t>(topology_.devices()));
    const int64_t rate = std::max(topology_.nic_bandwidth(device), int64_t{1});
    units = std::max(units, (Wide{nic_rows_[i]} * fastest_nic_ + rate - 1) / rate);
  }
  return Saturated(units);
}

// kRails is the number of devices in a server, or 0 where the compiler is not told.
template <int32_t kRails>
void Tiles::PlanServer(int32_t source) {
  for (int32_t target = 0; target < servers_; ++target) {
    SumTile<kRails>(source, target);
    if (source == target) {
      AddLocal();
    } else {
      SetTile<kRails>(source, target);
    }
  }
}

template <int32_t kRails>
void Tiles::SumTile(int32_t source, int32_t target) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  const int64_t devices = topology_.devices();
  const int64_t* tile = traffic_ + (source * devices + target) * m;
  if constexpr (kRails != 0) return SumInPairs<kRails>(tile);
  std::fill(column_sums_.begin(), column_sums_.end(), 0);
  for (int32_t local = 0; local < m; ++local) {
    const int64_t* row = tile + local * devices;
    for (int32_t i = 0; i < m; ++i) column_sums_[i] += row[i];
    row_sums_[local] = std::accumulate(row, row + m, int64_t{0});
    diagonal_[local] = row[local];
  }
}

// Two entries at a time: all of the matrix goes through here.
template <int32_t kRails>
void Tiles::SumInPairs(const int64_t* tile) {
  static_assert(kRails % 2 == 0);
  const int64_t devices = topology_.devices();
  Two columns[kRails / 2] = {};
  for (int32_t local = 0; local < kRails; local += 2) {
    const int64_t* row = tile + local * devices;
    const int64_t* next = row + devices;
    Two sum = {};
    Two next_sum = {};
    for (int64_t i = 0; i < kRails; i += 2) {
      const Two entries = LoadTwo(row + i);
      const Two next_entries = LoadTwo(next + i);
      sum += entries;
      next_sum += next_entries;
      columns[i / 2] += entries + next_entries;
    }
    StoreTwo(Two{sum[0], next_sum[0]} + Two{sum[1], next_sum[1]}, &row_sums_[local]);
    StoreTwo(Two{row[local], next[local + 1]}, &diagonal_[local]);
  }
  std::memcpy(column_sums_.data(), columns, sizeof(columns));
}

template <int32_t kRails>
void Tiles::SetTile(int32_t source, int32_t target) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  const int32_t pair = PairOf(source, target);
  int64_t sum = 0;
  for (int32_t i = 0; i < m; ++i) sum += row_sums_[i];
  sums_[pair] = sum;
  block_bound_ = std::max(block_bound_, sum);
  if (kind_ == Quotas::kOrigins) {
    quotas_ = row_sums_;
    CountRowsOfNics(source, target);
  } else {
    FillEvenQuotas<kRails>(source, target, quotas_.data());
  }
  if (counts_devices_) {
    int64_t* sent = &sent_rows_[topology_.device(source, 0)];
    int64_t* received = &received_rows_[topology_.device(target, 0)];
    for (int32_t i = 0; i < m; ++i) sent[i] += row_sums_[i];
    for (int32_t i = 0; i < m; ++i) received[i] += column_sums_[i];
  }
  const bool even = kind_ == Quotas::kEven && topology_.equal_nics();
  const int64_t most = even ? (sum + m - 1) / m : *std::max_element(quotas_.begin(), quotas_.end());
  most_rows_[pair] = std::min(most + filler_->slack_rows(sum), sum);
  units_[pair] = topology_.equal_nics() ? most : UnitsOf(source, target, quotas_.data());
  SetLoad<kRails>(source, target, most);
}

void Tiles::AddLocal() {
  for (int32_t i = 0; i < m_; ++i) {
    block_bound_ = std::max(block_bound_, row_sums_[i]);
    local_rows_ = std::max({local_rows_, row_sums_[i] - diagonal_[i], column_sums_[i] - diagonal_[i]});
  }
}

// Computes as if every rail kept its own rows, up to its quota, and were filled up with rows whose target it is. The
// balancer does so whenever there are such rows, so this is its load or less. `most` is the largest quota.
template <int32_t kRails>
void Tiles::SetLoad(int32_t source, int32_t target, int64_t most) {
  const int32_t pair = PairOf(source, target);
  const int32_t m = kRails == 0 ? m_ : kRails;
  TileLoad load;
  if (m > 1 && sums_[pair] > 0) {
    // Several at a time where they are narrow.
    load = kRails != 0 && sums_[pair] <= std::numeric_limits<int32_t>::max() ? LoadOf<int32_t, kRails>(source, target)
                                                                             : LoadOf<int64_t, kRails>(source, target);
    if (units_[pair] != most) {
      for (TileWork* work : {&load.balance, &load.redistribute}) work->units = MulDiv(work->units, units_[pair], most);
    }
  }
  loads_[pair] = load;
}

// Of a rail: `room` rows come from other devices, `leaving - quota` (if any) go to other rails, and `delivered` are at
// their target when they have crossed: its own straight rows, and what fills its room. No branch: lanes of a vector.
template <typename Rows, int32_t kRails>
TileLoad Tiles::LoadOf(int32_t source, int32_t target) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  const int64_t* quotas = quotas_.data();
  Rows balance = 0;
  Rows balance_units = 0;
  Rows redistribute = 0;
  Rows redistribute_units = 0;
  int64_t* balanced = &balanced_[static_cast<size_t>(source) * m];
  int64_t* redistributed = &redistributed_[static_cast<size_t>(target) * m];
  for (int32_t rail = 0; rail < m; ++rail) {
    const auto quota = static_cast<Rows>(quotas[rail]);
    const auto leaving = static_cast<Rows>(row_sums_[rail]);
    const auto entering = static_cast<Rows>(column_sums_[rail]);
    const auto straight = static_cast<Rows>(diagonal_[rail]);
    const Rows room = std::max<Rows>(quota - leaving, 0);
    const Rows delivered = std::min(std::min(quota, entering), std::min(straight, quota) + room);
    balance = std::max(balance, leaving - quota);
    balance_units = std::max(balance_units, room);
    redistribute = std::max(redistribute, entering - delivered);
    redistribute_units = std::max(redistribute_units, quota - delivered);
    balanced[rail] += leaving - quota + room;
    redistributed[rail] += entering - delivered;
  }
  return {{std::max(balance, balance_units), balance_units},
          {std::max(redistribute, redistribute_units), redistribute_units}};
}

// Prefix sums of the largest quotas, over what a server sends and then over what it receives: places of two pairs never
// overlap, and neither end of a transfer has to look at any other pair to know both.
void Tiles::SetStaging() {
  for (int32_t server = 0; server < servers_; ++server) {
    int64_t rows = 0;
    for (int32_t target = 0; target < servers_; ++target) {
      send_base_[PairOf(server, target)] = rows;
      rows += most_rows_[PairOf(server, target)];
    }
    staging_rows_[server] = rows;
  }
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) {
      const int32_t pair = PairOf(source, target);
      receive_base_[pair] = staging_rows_[target];
      staging_rows_[target] += most_rows_[pair];
    }
  }
}

// Rows that do not divide evenly go to rails that differ from pair to pair, so that they add up on no rail: a server's
// pairs begin with each rail in turn.
template <int32_t kRails>
void Tiles::FillEvenQuotas(int32_t source, int32_t target, int64_t* quotas) const {
  if (!topology_.equal_nics()) return FillUnequalQuotas(source, target, quotas);
  const uint32_t m = static_cast<uint32_t>(kRails == 0 ? m_ : kRails);
  const auto sum = static_cast<uint64_t>(sums_[PairOf(source, target)]);
  const auto extras = static_cast<uint32_t>(sum % m);
  const uint32_t first = static_cast<uint32_t>(source + target) % m;
  const auto share = static_cast<int64_t>(sum / m);
  for (uint32_t rail = 0; rail < m; ++rail) {
    quotas[rail] = share + ((rail < first ? rail + m - first : rail - first) < extras);
  }
}

void Tiles::FillQuotas(int32_t source, int32_t target, const int64_t* tile, int64_t* quotas) const {
  if (kind_ == Quotas::kEven) {
    return m_ == 8 ? FillEvenQuotas<8>(source, target, quotas) : FillEvenQuotas<0>(source, target, quotas);
  }
  for (int32_t rail = 0; rail < m_; ++rail, tile += topology_.devices()) {
    quotas[rail] = std::accumulate(tile, tile + m_, int64_t{0});
  }
}

// Apportionment in proportion to what a rail can carry from end to end. Rounded down, the shares fall short by less
// than one row for each rail that carries any; those rows go, one to a rail, where they are through first: by the least
// (quota + 1) / rate, which is D'Hondt's rule.
void Tiles::FillUnequalQuotas(int32_t source, int32_t target, int64_t* quotas) const {
  const int32_t pair = PairOf(source, target);
  Wide rates = 0;  // never stays so: every server has a NIC that works
  for (int32_t rail = 0; rail < m_; ++rail) rates += RateOf(source, target, rail);
  int64_t left = sums_[pair];
  for (int32_t rail = 0; rail < m_; ++rail) {
    quotas[rail] = static_cast<int64_t>(Wide{sums_[pair]} * RateOf(source, target, rail) / std::max<Wide>(rates, 1));
    left -= quotas[rail];
  }
  std::vector<int32_t>& order = rail_order_;
  order.clear();
  for (int32_t rail = 0; rail < m_; ++rail) {
    if (RateOf(source, target, rail) > 0) order.push_back(rail);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Wide time_a = Wide{quotas[a] + 1} * RateOf(source, target, b);
    const Wide time_b = Wide{quotas[b] + 1} * RateOf(source, target, a);
    return time_a != time_b ? time_a < time_b : (a + source + target) % m_ < (b + source + target) % m_;
  });
  for (int64_t i = 0; i < left; ++i) ++quotas[order[i]];
}

int64_t Tiles::RateOf(int32_t source, int32_t target, int32_t rail) const {
  const int64_t out = topology_.nic_bandwidth(topology_.device(source, rail));
  if (crossed_.empty() || crossed_[PairOf(source, target)] == 0) {
    return std::min(out, topology_.nic_bandwidth(topology_.device(target, rail)));
  }
  return rail == best_nic_[source] ? std::min(out, topology_.nic_bandwidth(topology_.device(target, best_nic_[target])))
                                   : 0;
}

int64_t Tiles::UnitsOf(int32_t source, int32_t target, const int64_t* quotas) const {
  int64_t units = 0;
  for (int32_t rail = 0; rail < m_; ++rail) {
    if (quotas[rail] == 0) continue;
    const int64_t rate = std::max(RateOf(source, target, rail), slowest_nic_);
    units = std::max(units, Saturated((Wide{quotas[rail]} * fastest_nic_ + rate - 1) / rate));
  }
  return std::min(units, (int64_t{1} << 62) / servers_);  // so that a server's add up
}

int64_t Tiles::PositionOf(int32_t pair, int64_t rail_rows, int64_t units) const {
  if (units >= units_[pair]) return rail_rows;
  return topology_.equal_nics() ? std::min(units, rail_rows) : MulDiv(rail_rows, units, units_[pair]);
}

bool Tiles::AnyRows(int32_t source, int32_t target, int64_t begin, int64_t end) const {
  const int32_t pair = PairOf(source, target);
  FillUnequalQuotas(source, target, quotas_.data());
  return std::any_of(quotas_.begin(), quotas_.end(),
                     [&](int64_t rows) { return PositionOf(pair, rows, begin) < PositionOf(pair, rows, end); });
}

}  // namespace fastjax::planner
