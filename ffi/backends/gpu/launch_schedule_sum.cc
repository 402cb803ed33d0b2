// Sums on the way back: of rows that land on each other, and by indices, which stay on the devices.
#include <algorithm>
#include <utility>

#include "backends/gpu/launch_schedule.h"

namespace fastjax::gpu {
namespace {

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

void LaunchSchedule::AddAllSums() {
  sum_.resize(moves_.size());
  for (SumList& list : sum_) {
    list.landings.clear();
    list.sources.clear();
    list.end = 0;
    list.indexed.clear();
    list.slices.clear();
  }
  if (placement_.row_bytes() == 0) return;
  for (const int32_t target : lowering_.devices()) kind_.indexed ? AddIndexedSum(target) : AddSums(target);
}

void LaunchSchedule::AddSums(int32_t target) {
  const ExchangeArgs& to = ArgsOf(target);
  const int32_t call = layout_->call_of[static_cast<size_t>(target)];
  std::vector<Addend> addends;
  traffic_->ListReturned(target, &returned_);
  traffic_->ForEachReturned(target, returned_, [&](int32_t origin, const Run& run, int64_t done) {
    const ExchangeArgs& from = ArgsOf(origin);
    const int32_t arrival = lowering_.ArrivalOf(origin, target);
    const std::byte* const source =
        arrival >= 0 ? BufferOf(arrival) + done * to.row_bytes : from.source + run.source_row * to.row_bytes;
    addends.push_back({run.destination_row, run.destination_row + run.rows, source});
  });
  Cutter(std::move(addends), to.row_bytes).Cut(to.destination, &sum_[static_cast<size_t>(call)]);
}

// What is returned to `target`, in the order of its entries; blocks that do not overlap have none in common.
void LaunchSchedule::AddIndexedSum(int32_t target) {
  const ExchangeArgs& to = ArgsOf(target);
  SumList& list = sum_[static_cast<size_t>(layout_->call_of[static_cast<size_t>(target)])];
  const size_t first = list.slices.size();
  traffic_->ListReturned(target, &returned_);
  traffic_->ForEachReturned(target, returned_, [&](int32_t origin, const Run& run, int64_t done) {
    list.slices.push_back(SliceOf(target, origin, run, done));
  });
  if (list.slices.size() == first) return;
  const auto element_bytes = static_cast<int64_t>(kernels::ElementBytes(types_.element));
  kernels::IndexedSum sum = {to.destination,
                             to.indexed_rows,
                             to.row_bytes / element_bytes,
                             to.device_starts,
                             to.device_indices,
                             static_cast<int32_t>(to.destination_rows),
                             nullptr,
                             static_cast<int64_t>(list.slices.size() - first),
                             false};
  sum.aligned = kernels::IsAligned(sum, list.slices.data() + first, types_);
  list.indexed.push_back({sum, first});
}

kernels::Slice LaunchSchedule::SliceOf(int32_t target, int32_t origin, const Run& run, int64_t done) const {
  const int32_t arrival = lowering_.ArrivalOf(origin, target);
  kernels::Summand first = {};
  if (arrival < 0) {
    first = ArgsOf(origin).SummandAt(run.source_row);
  } else {
    const std::byte* const rows = BufferOf(arrival);
    const std::byte* const factors = rows + traffic_->rows(origin, target) * placement_.row_bytes();
    first.row = rows + done * placement_.row_bytes();
    first.factor = factor_bytes_ == 0 ? nullptr : factors + done * factor_bytes_;
  }
  return {run.destination_row, run.rows, first.row, first.factor};
}

}  // namespace fastjax::gpu
