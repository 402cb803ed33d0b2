// Rows that land on each other, on the way back.
#include <algorithm>
#include <utility>

#include "transport/gpu/beats.h"

namespace fastjax::transport::gpu {
namespace {

using planner::Phase;
using planner::Transfer;

// Rows [begin, end) of an output that a run adds to.
struct Addend {
  int64_t begin;
  int64_t end;
  const std::byte* source;
};

// Cuts a target's rows wherever a run begins or ends, and lists what each part is the sum of, in the order of the runs.
class Cutter {
 public:
  Cutter(std::vector<Addend> addends, int64_t row_bytes) : addends_(std::move(addends)), row_bytes_(row_bytes) {
    for (size_t i = 0; i < addends_.size(); ++i) {
      cuts_.push_back(addends_[i].begin);
      cuts_.push_back(addends_[i].end);
      by_begin_.push_back(i);
    }
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    std::sort(by_begin_.begin(), by_begin_.end(),
              [this](size_t a, size_t b) { return addends_[a].begin < addends_[b].begin; });
  }

  void Cut(std::byte* output, SumList* list) {
    size_t next = 0;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
      const int64_t row = cuts_[i];
      const auto over = [&](size_t addend) { return addends_[addend].end <= row; };
      active_.erase(std::remove_if(active_.begin(), active_.end(), over), active_.end());
      for (; next < by_begin_.size() && addends_[by_begin_[next]].begin == row; ++next) {
        active_.insert(std::lower_bound(active_.begin(), active_.end(), by_begin_[next]), by_begin_[next]);
      }
      if (active_.empty()) continue;
      const int64_t begin = kernels::NextBegin(list->end, nullptr);
      const int64_t bytes = (cuts_[i + 1] - row) * row_bytes_;
      list->landings.push_back({output + row * row_bytes_, begin, bytes, static_cast<int32_t>(list->sources.size()),
                                static_cast<int32_t>(active_.size())});
      list->end = begin + bytes;
      for (const size_t addend : active_) {
        list->sources.push_back(addends_[addend].source + (row - addends_[addend].begin) * row_bytes_);
      }
    }
  }

 private:
  const std::vector<Addend> addends_;
  const int64_t row_bytes_;
  std::vector<int64_t> cuts_;
  std::vector<size_t> by_begin_;
  std::vector<size_t> active_;
};

}  // namespace

Status Beats::BuildSum() {
  for (int32_t rank = 0; rank < site_->group_size; ++rank) {
    if (layout_->lane_of[static_cast<size_t>(rank)] >= 0) TakeBlocks(rank);
  }
  if (Status status = Arrange(true); !status.ok()) return status;
  sum_.resize(moves_.size());
  for (SumList& list : sum_) {
    list.landings.clear();
    list.sources.clear();
    list.end = 0;
  }
  if (placement_.row_bytes() == 0) return Status::Ok();
  for (int32_t rank = 0; rank < site_->group_size; ++rank) {
    if (layout_->lane_of[static_cast<size_t>(rank)] >= 0) AddSums(rank);
  }
  return Status::Ok();
}

// The blocks that a device here sends to, or gets from, devices whose memory it cannot reach.
void Beats::TakeBlocks(int32_t rank) {
  for (int32_t peer = 0; peer < site_->group_size; ++peer) {
    if (layout_->domain_of[static_cast<size_t>(peer)] == layout_->domain_of[static_cast<size_t>(rank)]) continue;
    for (const auto& [origin, target] : {std::pair{rank, peer}, std::pair{peer, rank}}) {
      const int64_t rows = traffic_->rows(origin, target);
      if (rows == 0) continue;
      const Transfer whole{Phase::kLocal,     -1, origin, target, origin, target, 0, rows, Transfer::kInPlace,
                           Transfer::kInPlace};
      AddKey(0, origin == rank ? kSend : kReceive, rank, peer, whole);
    }
  }
}

void Beats::AddSums(int32_t target) {
  const ExchangeArgs& to = (*args_)[static_cast<size_t>(site_->position_at[static_cast<size_t>(target)])];
  const int32_t lane = layout_->lane_of[static_cast<size_t>(target)];
  std::vector<Addend> addends;
  for (int32_t origin = 0; origin < site_->group_size; ++origin) {
    const ExchangeArgs& from = (*args_)[static_cast<size_t>(site_->position_at[static_cast<size_t>(origin)])];
    const std::byte* arrived = Arrival(origin, target);
    const ptrdiff_t shift = layout_->ShiftOf(lane, origin, kSource);
    int64_t done = 0;
    traffic_->ForEachRun(origin, target, 0, traffic_->rows(origin, target), [&](const Run& run) {
      const std::byte* const source =
          arrived == nullptr ? from.source + shift + run.source_row * to.row_bytes : arrived + done * to.row_bytes;
      addends.push_back({run.destination_row, run.destination_row + run.rows, source});
      done += run.rows;
    });
  }
  Cutter(std::move(addends), to.row_bytes).Cut(to.destination, &sum_[static_cast<size_t>(lane)]);
}

// Where a block of another domain lies; null for those that are summed from where they were sent.
std::byte* Beats::Arrival(int32_t origin, int32_t target) const {
  const auto wanted = [&](const Parcel& parcel) {
    return parcel.kind == kReceive && parcel.here == target && parcel.peer == origin;
  };
  const auto found = std::find_if(parcels_.begin(), parcels_.end(), wanted);
  return found == parcels_.end() ? nullptr : BufferOf(*found);
}

}  // namespace fastjax::transport::gpu
