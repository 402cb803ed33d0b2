// FAST: rows for a server are spread over its rails, server pairs exchange equal shares in one-to-one stages, and
// rails hand rows to their targets. Plan works on servers only; a server pair is balanced when a device asks for it.
#include <algorithm>
#include <limits>

#include "planner/balance.h"
#include "planner/schedule.h"
#include "planner/stages.h"

namespace fastjax::planner {
namespace {

// What a stage moves on every rail of a server pair: rows [begin, end) of the rails' lists.
struct Slice {
  int32_t source;
  int32_t target;
  int64_t begin;
  int64_t end;
};

// What is still to be listed of a rail: entries [next, end), the first of which begins at `position`. Most lists have
// nothing in a given stage, and this says so without a look at their segments.
struct Remaining {
  static constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

  int32_t next = 0;
  int32_t end = 0;
  int64_t position = kNothing;
};

class Fast final : public Schedule {
 public:
  Fast(const Topology& topology, int64_t row_bytes);

  void Plan(const int64_t* traffic) override;
  int32_t num_stages() const override { return stages_.count(); }
  void Append(int32_t device, TransferBuffer* out) override;
  int64_t StagingRows(int32_t device) const override { return m_ == 1 ? 0 : staging_rows_[device]; }

 private:
  int32_t PairOf(int32_t source, int32_t target) const { return source * servers_ + target; }
  int64_t RailOf(int32_t source, int32_t target, int32_t rail) const {
    return int64_t{PairOf(source, target)} * m_ + rail;
  }

  void SumTiles();
  void SetQuotas();
  void SetStaging();
  void Reserve(int32_t source, int32_t target, int32_t holder, std::vector<int64_t>* bases);
  void BalanceTile(int32_t source, int32_t target);
  void PrepareAll();
  void ClearHops();
  void PrepareDevice(int32_t server, int32_t local);
  void ListHops(Phase phase, int32_t source, int32_t target, int32_t local, int32_t Segment::* end);
  bool NextSlice(int32_t source, int32_t target, int64_t length, Slice* slice);
  void CollectSlices(int32_t stage, int32_t server);

  void AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out);
  void AppendScaleOut(const Slice& slice, int32_t stage, int32_t rail, TransferBuffer* out);
  void AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out);
  void AppendStages(int32_t server, int32_t first, int32_t end, TransferBuffer* out);

  Topology topology_;
  int64_t row_bytes_;
  int32_t servers_;
  int32_t m_;
  const int64_t* traffic_ = nullptr;
  Balancer balancer_;
  StageBuilder stages_;

  // Per server pair.
  std::vector<int64_t> sums_;
  std::vector<int64_t> rail_rows_;  // the largest quota
  std::vector<uint8_t> balanced_;
  std::vector<int64_t> sent_;  // rows of the rails' lists that earlier stages moved
  // Per server pair and rail.
  std::vector<int64_t> quotas_;
  std::vector<Rail> rails_;
  std::vector<int64_t> send_base_;  // staging rows of the rail's sender and receiver at which the pair's begin
  std::vector<int64_t> receive_base_;
  std::vector<Remaining> lists_[4];    // by phase
  std::vector<int64_t> staging_rows_;  // per device

  std::vector<int64_t> column_sums_;
  std::vector<Segment> segments_;
  int32_t segments_used_ = 0;
  // Segments that the devices listed balance or redistribute; lists_ of these phases refer to it, that of scale-out to
  // segments_.
  std::vector<int32_t> hops_;
  int32_t hops_used_ = 0;
  std::vector<Slice> slices_;
};

Fast::Fast(const Topology& topology, int64_t row_bytes)
    : topology_(topology),
      row_bytes_(row_bytes),
      servers_(topology.servers),
      m_(topology.devices_per_server),
      balancer_(topology.devices_per_server),
      stages_(topology.servers) {
  const size_t pairs = static_cast<size_t>(servers_) * servers_;
  for (auto* per_pair : {&sums_, &rail_rows_, &sent_}) per_pair->resize(pairs);
  balanced_.resize(pairs);
  for (auto* per_rail : {&quotas_, &send_base_, &receive_base_}) per_rail->resize(pairs * m_);
  for (auto& lists : lists_) lists.resize(pairs * m_);
  rails_.resize(pairs * m_);
  staging_rows_.resize(topology.devices());
  column_sums_.resize(topology.devices());
  slices_.reserve(servers_);
}

void Fast::Plan(const int64_t* traffic) {
  traffic_ = traffic;
  SumTiles();
  SetQuotas();
  SetStaging();
  stages_.Build(rail_rows_.data(), topology_, row_bytes_);
  std::fill(balanced_.begin(), balanced_.end(), 0);
  segments_used_ = 0;
}

void Fast::SumTiles() {
  const int32_t devices = topology_.devices();
  for (int32_t source = 0; source < servers_; ++source) {
    const int64_t* row = traffic_ + static_cast<int64_t>(source) * m_ * devices;
    std::copy(row, row + devices, column_sums_.begin());
    for (int32_t local = 1; local < m_; ++local) {
      row += devices;
      for (int32_t device = 0; device < devices; ++device) column_sums_[device] += row[device];
    }
    for (int32_t target = 0; target < servers_; ++target) {
      int64_t sum = 0;
      for (int32_t local = 0; local < m_; ++local) sum += column_sums_[target * m_ + local];
      sums_[PairOf(source, target)] = source == target ? 0 : sum;
    }
  }
}

// Rows that do not divide evenly go to rails that differ from pair to pair, so that they add up on no rail.
void Fast::SetQuotas() {
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) {
      const int32_t pair = PairOf(source, target);
      const int64_t share = sums_[pair] / m_;
      const int32_t extras = static_cast<int32_t>(sums_[pair] % m_);
      int64_t* quotas = &quotas_[RailOf(source, target, 0)];
      std::fill(quotas, quotas + m_, share);
      const int32_t first = (source + target) % m_;
      for (int32_t i = 0; i < extras; ++i) ++quotas[first + i < m_ ? first + i : first + i - m_];
      rail_rows_[pair] = share + (extras > 0);
    }
  }
}

// A device's staging holds what it sends, by target server, and behind it what it receives, by source server; a row
// lies at its position in the rail's list. Rows that need no staging leave gaps: like this both ends of a transfer
// know both its places without balancing any pair but their own.
void Fast::SetStaging() {
  std::fill(staging_rows_.begin(), staging_rows_.end(), 0);
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) Reserve(source, target, source, &send_base_);
  }
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) Reserve(source, target, target, &receive_base_);
  }
}

void Fast::Reserve(int32_t source, int32_t target, int32_t holder, std::vector<int64_t>* bases) {
  const int64_t first = RailOf(source, target, 0);
  int64_t* rows = &staging_rows_[static_cast<size_t>(holder) * m_];
  for (int32_t rail = 0; rail < m_; ++rail) {
    (*bases)[first + rail] = rows[rail];
    rows[rail] += quotas_[first + rail];
  }
}

void Fast::BalanceTile(int32_t source, int32_t target) {
  const int32_t pair = PairOf(source, target);
  if (balanced_[pair] || sums_[pair] == 0) return;
  balanced_[pair] = 1;
  const size_t needed = static_cast<size_t>(segments_used_ + balancer_.max_segments());
  if (segments_.size() < needed) segments_.resize(2 * needed);
  const int64_t devices = topology_.devices();
  const int64_t* tile = traffic_ + (source * devices + target) * m_;
  const int64_t rail = RailOf(source, target, 0);
  segments_used_ = balancer_.Balance(tile, devices, &quotas_[rail], &rails_[rail], segments_.data(), segments_used_);
}

void Fast::PrepareAll() {
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) BalanceTile(source, target);
  }
  ClearHops();
  for (int32_t source = 0; source < servers_; ++source) {
    for (int32_t target = 0; target < servers_; ++target) {
      ListHops(Phase::kBalance, source, target, kEveryDevice, &Segment::origin);
      ListHops(Phase::kRedistribute, source, target, kEveryDevice, &Segment::target);
    }
  }
}

void Fast::PrepareDevice(int32_t server, int32_t local) {
  for (int32_t other = 0; other < servers_; ++other) {
    BalanceTile(server, other);
    BalanceTile(other, server);
  }
  ClearHops();
  for (int32_t other = 0; other < servers_; ++other) {
    ListHops(Phase::kBalance, server, other, local, &Segment::origin);
    ListHops(Phase::kRedistribute, other, server, local, &Segment::target);
  }
}

// A segment is balanced once and redistributed once at most; one more is written before it is known to be needed.
void Fast::ClearHops() {
  const size_t needed = 2 * static_cast<size_t>(segments_used_) + 1;
  if (hops_.size() < needed) hops_.resize(2 * needed);
  hops_used_ = 0;
}

// A device takes part in few of its server's local hops: on its own rail in those that start or end elsewhere, on
// others in those that do so here. They are picked out once, instead of in every stage.
void Fast::ListHops(Phase phase, int32_t source, int32_t target, int32_t local, int32_t Segment::* end) {
  const int32_t pair = PairOf(source, target);
  sent_[pair] = 0;
  if (sums_[pair] == 0) return;
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int64_t index = RailOf(source, target, rail);
    const Rail& whole = rails_[index];
    const int32_t partner = local == kEveryDevice || local == rail ? rail : local;
    const bool wanted = partner != rail;
    const int32_t first = hops_used_;
    for (int32_t i = whole.first; i < whole.end; ++i) {
      hops_[hops_used_] = i;
      hops_used_ += (segments_[i].*end == partner) == wanted;
    }
    const int64_t position = hops_used_ > first ? segments_[hops_[first]].position : Remaining::kNothing;
    lists_[static_cast<int32_t>(phase)][index] = {first, hops_used_, position};
    lists_[static_cast<int32_t>(Phase::kScaleOut)][index] = {whole.first, whole.end,
                                                             whole.first < whole.end ? 0 : Remaining::kNothing};
  }
}

bool Fast::NextSlice(int32_t source, int32_t target, int64_t length, Slice* slice) {
  if (source == StageBuilder::kIdle || target == StageBuilder::kIdle) return false;
  const int32_t pair = PairOf(source, target);
  const int64_t begin = sent_[pair];
  const int64_t end = std::min(begin + length, rail_rows_[pair]);
  sent_[pair] = end;
  *slice = {source, target, begin, end};
  return true;
}

// The slices of a stage, by source; for one server only those it is part of.
void Fast::CollectSlices(int32_t stage, int32_t server) {
  const int64_t length = stages_.length(stage);
  slices_.clear();
  Slice slice;
  const auto collect = [&](int32_t source, int32_t target) {
    if (NextSlice(source, target, length, &slice)) slices_.push_back(slice);
  };
  if (server == kEveryDevice) {
    for (int32_t source = 0; source < servers_; ++source) collect(source, stages_.to(stage, source));
    return;
  }
  const int32_t source = stages_.from(stage, server);
  if (source < server) collect(source, server);
  collect(server, stages_.to(stage, server));
  if (source > server) collect(source, server);
}

// Writes the pieces of a list that fall into the slice, and drops from the list what the slice uses up. segment_at(i)
// is the list's i-th, write(segment, from, rows) the transfer of rows from position `from` on.
template <typename SegmentAt, typename Write>
void AppendPieces(const Slice& slice, Remaining* list, TransferBuffer* out, SegmentAt segment_at, Write write) {
  Transfer* next = out->Reserve(list->end - list->next);
  while (list->position < slice.end) {
    const Segment& segment = segment_at(list->next);
    const int64_t segment_end = segment.position + segment.rows;
    const int64_t from = std::max(segment.position, slice.begin);
    *next++ = write(segment, from, std::min(segment_end, slice.end) - from);
    if (segment_end > slice.end) break;
    ++list->next;
    list->position = list->next < list->end ? segment_at(list->next).position : Remaining::kNothing;
  }
  out->Commit(next);
}

void Fast::AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int64_t index = RailOf(slice.source, slice.target, rail);
    Remaining* list = &lists_[static_cast<int32_t>(Phase::kBalance)][index];
    if (list->position >= slice.end) continue;
    const auto segment_at = [&](int32_t i) -> const Segment& { return segments_[hops_[i]]; };
    AppendPieces(slice, list, out, segment_at, [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      return {Phase::kBalance,
              stage,
              source + segment.origin,
              source + rail,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              Transfer::kInPlace,
              send_base_[index] + from};
    });
  }
}

void Fast::AppendScaleOut(const Slice& slice, int32_t stage, int32_t rail, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  const int64_t index = RailOf(slice.source, slice.target, rail);
  Remaining* list = &lists_[static_cast<int32_t>(Phase::kScaleOut)][index];
  const auto segment_at = [&](int32_t i) -> const Segment& { return segments_[i]; };
  AppendPieces(slice, list, out, segment_at, [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
    return {Phase::kScaleOut,
            stage,
            source + rail,
            target + rail,
            source + segment.origin,
            target + segment.target,
            segment.first_row + from - segment.position,
            rows,
            segment.origin == rail ? Transfer::kInPlace : send_base_[index] + from,
            segment.target == rail ? Transfer::kInPlace : receive_base_[index] + from};
  });
}

void Fast::AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out) {
  const int32_t source = slice.source * m_;
  const int32_t target = slice.target * m_;
  for (int32_t rail = 0; rail < m_; ++rail) {
    const int64_t index = RailOf(slice.source, slice.target, rail);
    Remaining* list = &lists_[static_cast<int32_t>(Phase::kRedistribute)][index];
    if (list->position >= slice.end) continue;
    const auto segment_at = [&](int32_t i) -> const Segment& { return segments_[hops_[i]]; };
    AppendPieces(slice, list, out, segment_at, [&](const Segment& segment, int64_t from, int64_t rows) -> Transfer {
      return {Phase::kRedistribute,
              stage,
              target + rail,
              target + segment.target,
              source + segment.origin,
              target + segment.target,
              segment.first_row + from - segment.position,
              rows,
              receive_base_[index] + from,
              Transfer::kInPlace};
    });
  }
}

void Fast::Append(int32_t device, TransferBuffer* out) {
  AppendLocal(topology_, traffic_, device, out);
  if (device == kEveryDevice) {
    PrepareAll();
    AppendStages(kEveryDevice, 0, m_, out);
  } else {
    const int32_t local = topology_.local_of(device);
    PrepareDevice(topology_.server_of(device), local);
    AppendStages(topology_.server_of(device), local, local + 1, out);
  }
}

// Of one server, or all; scale-out on rails [first, end) only.
void Fast::AppendStages(int32_t server, int32_t first, int32_t end, TransferBuffer* out) {
  const bool every = server == kEveryDevice;
  for (int32_t stage = 0; stage < stages_.count(); ++stage) {
    CollectSlices(stage, server);
    for (const Slice& slice : slices_) {
      if (every || slice.source == server) AppendBalance(slice, stage, out);
    }
    for (const Slice& slice : slices_) {
      for (int32_t rail = first; rail < end; ++rail) AppendScaleOut(slice, stage, rail, out);
    }
    for (const Slice& slice : slices_) {
      if (every || slice.target == server) AppendRedistribute(slice, stage, out);
    }
  }
}

}  // namespace

std::unique_ptr<Schedule> MakeFast(const Topology& topology, int64_t row_bytes) {
  return std::make_unique<Fast>(topology, row_bytes);
}

// docs/design/stage_tables.md derives this.
int64_t MaxEntriesFast(const Topology& topology) {
  const int64_t m = topology.devices_per_server;
  const int64_t peers = topology.servers - 1;
  const int64_t stages = MaxStages(topology.servers);
  const int64_t local = 2 * m - 1;
  const int64_t scale_out = peers * (m * m - 1) + stages;
  if (m == 1) return local + 2 * scale_out;
  const int64_t rail_side = peers * (m * m - m) + stages;
  const int64_t peer_side = peers * std::min(3 * m - 3, m * (m - 1)) + (m - 1) * stages;
  return local + 2 * (scale_out + rail_side + peer_side);
}

}  // namespace fastjax::planner
