// RailS (arXiv 2510.19262): every server sprays what it has for another over its rails, on its own information, and
// sends it all at once. That loads NICs evenly, with no stages to wait for and none to keep senders apart.
#include <algorithm>

#include "planner/at_once.h"
#include "planner/pricing.h"
#include "planner/rail_lists.h"
#include "planner/schedule.h"
#include "planner/spray.h"

namespace fastjax::planner {
namespace {

class Rails final : public Schedule {
 public:
  Rails(const Topology& topology, int64_t row_bytes)
      : topology_(topology),
        pricing_(topology, row_bytes),
        row_bytes_(row_bytes),
        tiles_(topology, std::make_unique<Sprayer>(topology.servers == 1 ? 1 : topology.devices_per_server, row_bytes)),
        lists_(&tiles_) {}

  void Plan(const int64_t* traffic) override {
    tiles_.Plan(traffic);
    const auto pairs = static_cast<int32_t>(int64_t{topology_.servers} * topology_.servers);
    int64_t cross = 0;
    for (int32_t pair = 0; pair < pairs; ++pair) cross |= tiles_.sum(pair);
    stages_ = cross != 0 ? 1 : 0;
  }
  void Rebind(const int64_t* traffic) override { tiles_.Rebind(traffic); }
  int32_t num_stages() const override { return stages_; }
  int64_t block_bound() const override { return tiles_.block_bound(); }
  Picoseconds PredictedTime() override;
  int64_t StagingRows(int32_t server) const override {
    return topology_.devices_per_server == 1 ? 0 : tiles_.staging_rows(server);
  }
  void Append(int32_t device, TransferBuffer* out) override;

 private:
  // A server's sums over its pairs, of what its busiest device does.
  struct ServerLoad {
    int64_t sent = 0;
    int64_t received = 0;
    int64_t balance = 0;
    int64_t redistribute = 0;
    int64_t chunks = 0;
  };

  void CollectSlices(int32_t device);
  ServerLoad LoadOf(int32_t server) const;
  int64_t ChunksOf(int32_t pair) const;
  int64_t ChunkRows(int64_t tile_rows) const {
    return Sprayer::ChunkRows(topology_.devices_per_server, row_bytes_, tile_rows);
  }
  Picoseconds InStep() const;

  Topology topology_;
  Pricing pricing_;
  int64_t row_bytes_;
  Tiles tiles_;
  RailLists lists_;
  int32_t stages_ = 0;
  std::vector<Slice> slices_;
};

void Rails::CollectSlices(int32_t device) {
  slices_.clear();
  const bool every = device == kEveryDevice;
  const int32_t server = every ? 0 : topology_.server_of(device);
  const auto collect = [&](int32_t source, int32_t target) {
    // Rails carry a little more or less than their quotas, hence more units than the pair has of them.
    if (tiles_.sum(tiles_.PairOf(source, target)) != 0) slices_.push_back({source, target, 0, int64_t{1} << 62});
  };
  for (int32_t source = 0; source < topology_.servers; ++source) {
    if (!every && source != server) {
      collect(source, server);
      continue;
    }
    for (int32_t target = 0; target < topology_.servers; ++target) collect(source, target);
  }
}

void Rails::Append(int32_t device, TransferBuffer* out) {
  AppendLocal(topology_, tiles_.traffic(), device, out);
  lists_.Prepare(device);
  CollectSlices(device);
  for (const Slice& slice : slices_) lists_.AppendBalance(slice, 0, out);
  for (const Slice& slice : slices_) lists_.AppendScaleOut(slice, 0, out);
  for (const Slice& slice : slices_) lists_.AppendRedistribute(slice, 0, out);
}

int64_t Rails::ChunksOf(int32_t pair) const {
  const int64_t sum = tiles_.sum(pair);
  if (sum == 0) return 0;
  const int64_t m = topology_.devices_per_server;
  return std::min(sum, m * m + sum / ChunkRows(sum)) / m + 1;
}

Rails::ServerLoad Rails::LoadOf(int32_t server) const {
  ServerLoad load;
  int64_t sends = 0;
  int64_t receives = 0;
  for (int32_t other = 0; other < topology_.servers; ++other) {
    const int32_t out = tiles_.PairOf(server, other);
    const int32_t in = tiles_.PairOf(other, server);
    load.sent += tiles_.units()[out];
    load.received += tiles_.units()[in];
    load.balance += tiles_.load(out).balance;
    load.redistribute += tiles_.load(in).redistribute;
    sends += ChunksOf(out);
    receives += ChunksOf(in);
  }
  load.chunks = std::max(sends, receives);
  return load;
}

// What the server matrix would take if servers went from one to the next together.
Picoseconds Rails::InStep() const {
  const int32_t n = topology_.servers;
  int64_t units = 0;
  for (int32_t shift = 1; shift < n; ++shift) {
    int64_t longest = 0;
    for (int32_t s = 0; s < n; ++s) {
      longest = std::max(longest, tiles_.units()[tiles_.PairOf(s, s + shift < n ? s + shift : s + shift - n)]);
    }
    units += longest;
  }
  return pricing_.scale_out.Time(units);
}

// Chunks flow through balance, NIC and redistribution: the slowest of the three fabrics' parts, and the first chunk's
// way to the NIC and the last one's way from it.
Picoseconds Rails::PredictedTime() {
  int64_t busiest = 0;
  int64_t chunks = 0;
  int64_t inside = 0;
  int64_t hops = 0;
  for (int32_t server = 0; server < topology_.servers; ++server) {
    const ServerLoad load = LoadOf(server);
    busiest = std::max({busiest, load.sent, load.received});
    chunks = std::max(chunks, load.chunks);
    inside = std::max(inside, load.balance + load.redistribute);
    hops = std::max(hops, std::min<int64_t>(load.balance, 1) + std::min<int64_t>(load.redistribute, 1));
  }
  const Picoseconds local = tiles_.local_rows() == 0 ? Picoseconds{0} : pricing_.scale_up_latency;
  const Picoseconds up = local + pricing_.scale_up.Time(inside + tiles_.local_rows());
  if (stages_ == 0) return up;
  const Picoseconds out =
      AtOnceTime(topology_, pricing_.scale_out.Time(busiest), InStep()) + pricing_.transfer_overhead * chunks;
  const int64_t chunk = std::min(ChunkRows(busiest), busiest);
  return std::max(up, out + pricing_.scale_out_latency) +
         hops * (pricing_.scale_up_latency + pricing_.scale_up.Time(chunk));
}

}  // namespace

std::unique_ptr<Schedule> MakeRails(const Topology& topology, int64_t row_bytes) {
  return std::make_unique<Rails>(topology, row_bytes);
}

// Measured like that of fast: within a fifth.
Picoseconds RailsPlanningTime(const Topology& topology) {
  const Wide n = topology.servers;
  const Wide m = topology.devices_per_server;
  return 1000 * (1000 + 3 * (n * m) * (n * m) / 2 + 160 * (n - 1) * m * m);
}

// All chunks of a tile may lie on one rail; docs/design/stage_tables.md.
int64_t MaxEntriesRails(const Topology& topology) {
  const int32_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t local = 2 * int64_t{m} - 1;
  const int64_t rail = peers * Sprayer::MaxChunks(m);
  if (m == 1) return local + 2 * rail;
  return local + 4 * rail + 2 * peers * Sprayer::MaxChunksOfDevice(m);
}

}  // namespace fastjax::planner
