#include "planner/straight.h"

#include <algorithm>

namespace fastjax::planner {
namespace {

// Senders that are measured together: as many as registers hold the sums of.
constexpr int32_t kTogether = 4;

}  // namespace

Straight::Straight(const Topology& topology, int64_t row_bytes, bool staged)
    : topology_(topology),
      pricing_(topology, row_bytes),
      staged_(staged),
      used_(topology.devices()),
      longest_(topology.devices()),
      received_rows_(topology.devices()),
      received_transfers_(topology.devices()),
      received_inside_(topology.devices()) {
  slowest_counted_ = topology_.slowest_counted_nic();
  for (int32_t device = 0; device < topology.devices(); ++device) {
    nics_.emplace_back(row_bytes, topology_.nic_bandwidth(device));
  }
}

void Straight::Plan(const int64_t* traffic, const MatchingList* /*given*/) {
  for (auto* received : {&received_rows_, &received_transfers_, &received_inside_}) {
    std::fill(received->begin(), received->end(), 0);
  }
  out_ = 0;
  inside_ = transfers_ = block_bound_ = 0;
  const int32_t m = topology_.devices_per_server;
  for (int32_t first = 0; first < topology_.devices(); first += m) {
    int32_t local = 0;
    for (; local + kTogether <= m; local += kTogether) Measure<kTogether>(traffic, first + local);
    for (; local < m; ++local) Measure<1>(traffic, first + local);
  }
  for (int32_t dst = 0; dst < topology_.devices(); ++dst) {
    out_ = std::max(out_, nics_[dst].Time(received_rows_[dst]));
    transfers_ = std::max(transfers_, received_transfers_[dst]);
    inside_ = std::max(inside_, received_inside_[dst]);
  }
  stages_ = staged_ ? CountDistances(traffic) : static_cast<int32_t>(std::min<int64_t>(transfers_, 1));
}

// Devices of one server from src on, together: what each receiver gets of them is added up before memory is touched.
// Written so that compilers find vectors in it.
template <int32_t kSources>
void Straight::Measure(const int64_t* traffic, int32_t src) {
  const int32_t devices = topology_.devices();
  const int64_t* row = traffic + static_cast<int64_t>(src) * devices;
  const int32_t first = src - topology_.local_of(src);
  const int32_t end = first + topology_.devices_per_server;
  int64_t sent[kSources] = {};
  int64_t sends[kSources] = {};
  int64_t* rows_in = received_rows_.data();
  int64_t* transfers_in = received_transfers_.data();
  const auto cross = [&](int32_t begin, int32_t stop) {
    for (int32_t dst = begin; dst < stop; ++dst) {
      int64_t rows = 0;
      int64_t transfers = 0;
      for (int32_t k = 0; k < kSources; ++k) {
        const int64_t block = row[k * static_cast<int64_t>(devices) + dst];
        const auto any = static_cast<int64_t>(static_cast<uint64_t>(-block) >> 63);  // 1 if there are rows
        sent[k] += block;
        sends[k] += any;
        rows += block;
        transfers += any;
      }
      rows_in[dst] += rows;
      transfers_in[dst] += transfers;
    }
  };
  cross(0, first);
  cross(end, devices);
  for (int32_t k = 0; k < kSources; ++k) {
    const int64_t* own = row + k * static_cast<int64_t>(devices);
    int64_t inside = 0;
    for (int32_t dst = first; dst < end; ++dst) {
      if (dst == src + k) continue;
      inside += own[dst];
      received_inside_[dst] += own[dst];
    }
    out_ = std::max(out_, nics_[src + k].Time(sent[k]));
    transfers_ = std::max(transfers_, sends[k]);
    inside_ = std::max(inside_, inside);
    block_bound_ = std::max({block_bound_, sent[k], inside, own[src + k]});
  }
}

// Each is a stage.
int32_t Straight::CountDistances(const int64_t* traffic) {
  const int32_t devices = topology_.devices();
  std::fill(used_.begin(), used_.end(), 0);
  for (int32_t src = 0; src < devices; ++src) {
    const int64_t* row = traffic + static_cast<int64_t>(src) * devices;
    const int32_t first = src - topology_.local_of(src);
    for (int32_t dst = 0; dst < first; ++dst) used_[dst + devices - src] |= row[dst];
    for (int32_t dst = first + topology_.devices_per_server; dst < devices; ++dst) used_[dst - src] |= row[dst];
  }
  return static_cast<int32_t>(std::count_if(used_.begin(), used_.end(), [](int64_t rows) { return rows != 0; }));
}

// By round, the largest block that leaves its server, in rows of the fastest NIC; summed. Only prices need it.
int64_t Straight::LongestUnits(const int64_t* traffic) {
  const int32_t devices = topology_.devices();
  const int32_t m = topology_.devices_per_server;
  std::fill(longest_.begin(), longest_.end(), 0);
  for (int32_t src = 0; src < devices; ++src) {
    const int32_t local = topology_.local_of(src);
    const int32_t own = src - local;
    for (int32_t first = 0; first < devices; first += m) {
      if (first == own) continue;
      if (staged_) {
        Lengthen(traffic, src, first, m, first < src ? first - src + devices : first - src);
        continue;
      }
      const int32_t round = first < own ? first - own + devices : first - own;
      Lengthen(traffic, src, first + local, m - local, round);
      Lengthen(traffic, src, first, local, round + m - local);
    }
  }
  int64_t sum = 0;
  for (const int64_t units : longest_) sum = Saturated(Wide{sum} + units);
  return sum;
}

// Blocks from src to `count` devices from `first` on, which are of as many rounds from `round` on.
void Straight::Lengthen(const int64_t* traffic, int32_t src, int32_t first, int32_t count, int32_t round) {
  const int64_t* row = traffic + static_cast<int64_t>(src) * topology_.devices() + first;
  int64_t* longest = longest_.data() + round;  // one beyond the last, where there is nothing to do
  if (topology_.equal_nics()) {
    for (int32_t i = 0; i < count; ++i) longest[i] = std::max(longest[i], row[i]);
  } else {
    for (int32_t i = 0; i < count; ++i) longest[i] = std::max(longest[i], UnitsOf(src, first + i, row[i]));
  }
}

int64_t Straight::UnitsOf(int32_t src, int32_t dst, int64_t rows) const {
  const int64_t rate = std::min(topology_.nic_bandwidth(src), topology_.nic_bandwidth(dst));
  const int64_t counted = std::max(rate, slowest_counted_);
  const Wide units = (Wide{rows} * topology_.fastest_nic() + counted - 1) / counted;
  return static_cast<int64_t>(std::min<Wide>(units, (int64_t{1} << 62) / topology_.devices()));
}

// NICs and the fabric inside servers work side by side.
Picoseconds Straight::PredictedTime(const int64_t* traffic) {
  const Picoseconds inside = pricing_.InsideTime(inside_);
  if (stages_ == 0) return inside;
  const Picoseconds stages = pricing_.scale_out.Time(LongestUnits(traffic));
  const Picoseconds out = staged_ ? stages + pricing_.scale_out_latency * stages_
                                  : pricing_.scale_out_latency + PostedTime(AtOnceTime(topology_, out_, stages),
                                                                            pricing_.transfer_overhead, transfers_);
  return std::max(inside, out);
}

void Straight::Append(const int64_t* traffic, int32_t device, TransferBuffer* out) {
  AppendLocal(topology_, traffic, device, out);
  for (int32_t server = 1; !staged_ && server < topology_.servers; ++server) {
    for (int32_t local = 0; local < topology_.devices_per_server; ++local) {
      AppendRound(topology_, traffic, server, local, device, out);
    }
  }
  if (!staged_) return;
  int32_t stage = 0;
  for (int32_t shift = 1; shift < topology_.devices(); ++shift) {
    if (used_[shift] == 0) continue;
    AppendShift(topology_, traffic, shift, stage++, device, out);
  }
}

int64_t MaxEntriesOneTransferPerPeer(const Topology& topology) { return 2 * int64_t{topology.devices()} - 1; }

}  // namespace fastjax::planner
