#include "planner/tiles.h"

#include <algorithm>
#include <utility>

#include "planner/rate.h"

namespace fastjax::planner {
namespace {

// Rails of all pairs are kept where there are no more than this.
constexpr int64_t kMaxDenseRails = int64_t{1} << 16;

constexpr size_t kMaxSpareSegments = size_t{1} << 20;

}  // namespace

Tiles::Tiles(const Topology& topology, std::unique_ptr<RailFiller> filler)
    : topology_(topology),
      servers_(topology.servers),
      m_(topology.devices_per_server),
      fastest_nic_(std::max<int64_t>(topology.fastest_nic(), 1)),
      slowest_nic_(topology.slowest_counted_nic()),
      filler_(std::move(filler)),
      staging_rows_(topology.servers),
      row_sums_(topology.devices()),
      column_sums_(topology.devices()),
      diagonal_(topology.devices()),
      quotas_(topology.devices_per_server) {
  const size_t pairs = static_cast<size_t>(servers_) * servers_;
  for (auto* by_pair : {&sums_, &units_, &most_rows_, &send_base_, &receive_base_}) by_pair->resize(pairs);
  loads_.resize(pairs);
  dense_ = static_cast<int64_t>(pairs) * m_ <= kMaxDenseRails;
  const size_t slots = dense_ ? pairs : 2 * static_cast<size_t>(servers_);
  filled_.resize(slots);
  rails_.resize(slots * m_);
  if (!topology_.equal_nics()) SetCrossed();
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
  local_rows_ = 0;
  // Eight is what most servers have.
  for (int32_t source = 0; source < servers_; ++source) m_ == 8 ? PlanServer<8>(source) : PlanServer<0>(source);
  SetStaging();
  ForgetRails();
  asked_ = false;
}

// kRails is the number of devices in a server, or 0 where the compiler is not told.
template <int32_t kRails>
void Tiles::PlanServer(int32_t source) {
  SumServer<kRails>(source);
  for (int32_t target = 0; target < servers_; ++target) SetTile<kRails>(source, target);
}

template <int32_t kRails>
void Tiles::SumServer(int32_t source) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  const int32_t devices = topology_.devices();
  std::fill(column_sums_.begin(), column_sums_.end(), 0);
  int64_t* columns = column_sums_.data();
  for (int32_t local = 0; local < m; ++local) {
    const int64_t* row = traffic_ + static_cast<int64_t>(topology_.device(source, local)) * devices;
    int64_t* sums = &row_sums_[local];
    int64_t* diagonal = &diagonal_[local];
    for (int32_t first = 0; first < devices; first += m) {
      int64_t sum = 0;
      for (int32_t i = 0; i < m; ++i) {
        sum += row[first + i];
        columns[first + i] += row[first + i];
      }
      sums[first] = sum;
      diagonal[first] = row[first + local];
    }
  }
}

template <int32_t kRails>
void Tiles::SetTile(int32_t source, int32_t target) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  const int32_t pair = PairOf(source, target);
  const int64_t* rows = &row_sums_[static_cast<size_t>(target) * m];
  const int64_t* columns = &column_sums_[static_cast<size_t>(target) * m];
  const int64_t* diagonal = &diagonal_[static_cast<size_t>(target) * m];
  if (source == target) return AddLocal(rows, columns, diagonal);
  int64_t sum = 0;
  for (int32_t i = 0; i < m; ++i) sum += rows[i];
  sums_[pair] = sum;
  FillQuotas<kRails>(source, target, quotas_.data());
  most_rows_[pair] = std::min(*std::max_element(quotas_.begin(), quotas_.end()) + filler_->slack_rows(sum), sum);
  units_[pair] = UnitsOf(source, target, quotas_.data());
  SetLoad<kRails>(pair, rows, columns, diagonal);
}

void Tiles::AddLocal(const int64_t* row_sums, const int64_t* column_sums, const int64_t* diagonal) {
  for (int32_t i = 0; i < m_; ++i) {
    local_rows_ = std::max({local_rows_, row_sums[i] - diagonal[i], column_sums[i] - diagonal[i]});
  }
}

// As if every rail kept its own rows, up to its quota, and were filled up with rows whose target it is: what the
// balancer does whenever there are such rows.
template <int32_t kRails>
void Tiles::SetLoad(int32_t pair, const int64_t* row_sums, const int64_t* column_sums, const int64_t* diagonal) {
  const int32_t m = kRails == 0 ? m_ : kRails;
  TileLoad load;
  if (m > 1 && sums_[pair] > 0) {
    for (int32_t rail = 0; rail < m; ++rail) {
      const int64_t quota = quotas_[rail];
      const int64_t room = std::max<int64_t>(quota - row_sums[rail], 0);
      const int64_t home = std::min({quota, column_sums[rail], std::min(diagonal[rail], quota) + room});
      load.balance = std::max({load.balance, row_sums[rail] - quota, room});
      load.balance_units = std::max(load.balance_units, room);
      load.redistribute = std::max({load.redistribute, column_sums[rail] - home, quota - home});
      load.redistribute_units = std::max(load.redistribute_units, quota - home);
    }
    if (units_[pair] != most_rows_[pair]) {
      load.balance_units = MulDiv(load.balance_units, units_[pair], most_rows_[pair]);
      load.redistribute_units = MulDiv(load.redistribute_units, units_[pair], most_rows_[pair]);
    }
  }
  loads_[pair] = load;
}

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

// Rows that do not divide evenly go to rails that differ from pair to pair, so that they add up on no rail.
template <int32_t kRails>
void Tiles::FillQuotas(int32_t source, int32_t target, int64_t* quotas) const {
  if (!topology_.equal_nics()) return FillUnequalQuotas(source, target, quotas);
  const uint32_t m = static_cast<uint32_t>(kRails == 0 ? m_ : kRails);
  const auto sum = static_cast<uint64_t>(sums_[PairOf(source, target)]);
  const auto extras = static_cast<uint32_t>(sum % m);
  const uint32_t first = static_cast<uint32_t>(source + target) % m;
  std::fill(quotas, quotas + m, static_cast<int64_t>(sum / m));
  for (uint32_t i = 0; i < extras; ++i) ++quotas[first + i < m ? first + i : first + i - m];
}

// In proportion to what a rail can carry from end to end. Rounded down, the shares fall short by less than one row for
// each rail that carries any; those rows go where they are through first, one to a rail.
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
  for (int64_t i = 0; i < left; ++i) ++quotas[order[static_cast<size_t>(i)]];
}

int64_t Tiles::RateOf(int32_t source, int32_t target, int32_t rail) const {
  const int64_t out = topology_.nic_bandwidth(topology_.device(source, rail));
  if (crossed_[PairOf(source, target)] == 0) {
    return std::min(out, topology_.nic_bandwidth(topology_.device(target, rail)));
  }
  return rail == best_nic_[source] ? std::min(out, topology_.nic_bandwidth(topology_.device(target, best_nic_[target])))
                                   : 0;
}

int64_t Tiles::UnitsOf(int32_t source, int32_t target, const int64_t* quotas) const {
  if (topology_.equal_nics()) return *std::max_element(quotas, quotas + m_);
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

bool Tiles::AnyRows(int32_t source, int32_t target, int64_t begin, int64_t end, std::vector<int64_t>* scratch) const {
  if (topology_.equal_nics() || begin == end) return begin < end;
  const int32_t pair = PairOf(source, target);
  scratch->resize(static_cast<size_t>(m_));
  FillQuotas<0>(source, target, scratch->data());
  return std::any_of(scratch->begin(), scratch->end(),
                     [&](int64_t rows) { return PositionOf(pair, rows, begin) < PositionOf(pair, rows, end); });
}

size_t Tiles::Slot(int32_t source, int32_t target) const {
  if (dense_) return static_cast<size_t>(PairOf(source, target));
  return static_cast<size_t>(source == server_ ? target : servers_ + source);
}

void Tiles::ForgetRails() {
  std::fill(filled_.begin(), filled_.end(), 0);
  segments_used_ = 0;
  server_ = kNoServer;
  only_device_ = kNoDevice;
}

void Tiles::PrepareAll() {
  if (!dense_ || only_device_ != kNoDevice) {
    filled_.resize(sums_.size());
    rails_.resize(sums_.size() * m_);
    dense_ = true;
    ForgetRails();
  }
  asked_ = true;
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) FillTile(source, target, nullptr);
  }
}

void Tiles::PrepareDevice(int32_t device) {
  if (device == only_device_) return;
  const int32_t server = topology_.server_of(device);
  // A rail that ends elsewhere than it starts is another device's own at either end.
  if (asked_ || !topology_.equal_nics()) {
    if (only_device_ != kNoDevice) ForgetRails();
    return PrepareServer(server);
  }
  asked_ = true;
  server_ = server;
  only_device_ = device;
  const Viewer sender = {topology_.local_of(device), true};
  const Viewer receiver = {topology_.local_of(device), false};
  for (int32_t other = 0; other < servers_; ++other) {
    FillTile(server, other, &sender);
    FillTile(other, server, &receiver);
  }
}

void Tiles::PrepareServer(int32_t server) {
  if (!dense_ && server != server_) {
    ForgetRails();
    server_ = server;
  }
  for (int32_t other = 0; other < servers_; ++other) {
    FillTile(server, other, nullptr);
    FillTile(other, server, nullptr);
  }
}

void Tiles::FillTile(int32_t source, int32_t target, const Viewer* viewer) {
  const int32_t pair = PairOf(source, target);
  const size_t slot = Slot(source, target);
  if (filled_[slot] != 0 || sums_[pair] == 0) return;
  filled_[slot] = 1;
  const size_t needed = static_cast<size_t>(segments_used_ + filler_->max_segments());
  if (segments_.size() < needed) segments_.resize(needed + std::min<size_t>(needed, kMaxSpareSegments));
  const int64_t devices = topology_.devices();
  const int64_t* tile = traffic_ + (source * devices + target) * m_;
  Rail* rails = &rails_[slot * m_];
  FillQuotas<0>(source, target, quotas_.data());
  segments_used_ =
      viewer == nullptr
          ? filler_->Fill(tile, devices, quotas_.data(), rails, segments_.data(), segments_used_)
          : filler_->FillFor(*viewer, tile, devices, quotas_.data(), rails, segments_.data(), segments_used_);
}

}  // namespace fastjax::planner
