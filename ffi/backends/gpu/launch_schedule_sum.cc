// Sums on the way back, of rows that land on each other: the lists of what lands on which row.
#include <limits>
#include <numeric>
#include <string>

#include "backends/gpu/launch_schedule.h"

namespace fastjax::gpu {

Status LaunchSchedule::AddAllSums() {
  sum_.resize(moves_.size());
  for (SumList& list : sum_) {
    list.results.clear();
    list.slices.clear();
    list.starts.clear();
    list.entries.clear();
  }
  if (placement_.row_bytes() == 0) return Status::Ok();
  for (const int32_t target : lowering_.devices()) {
    if (Status status = AddSum(target); !status.ok()) return status;
  }
  return Status::Ok();
}

// Devices have lists of the entries that indices name, and those that came in one slice follow each other; blocks that
// do not overlap have none in common. Other rows are numbered as they are returned, so that each is an entry once.
Status LaunchSchedule::AddSum(int32_t target) {
  constexpr int64_t kMostEntries = std::numeric_limits<int32_t>::max();
  const ExchangeArgs& to = ArgsOf(target);
  SumList& list = sum_[static_cast<size_t>(layout_->call_of[static_cast<size_t>(target)])];
  SumList::Result result = {{}, list.slices.size(), list.starts.size(), list.entries.size()};
  int64_t entries = 0;
  traffic_->ListReturned(target, &returned_);
  traffic_->ForEachReturned(target, returned_, [&](int32_t origin, const Run& run, int64_t done) {
    const kernels::Summand first = FirstOf(target, origin, run, done);
    list.slices.push_back({kind_.indexed ? run.destination_row : entries, run.rows, first.row, first.factor});
    entries += run.rows;
  });
  if (entries == 0) return Status::Ok();
  if (!kind_.indexed && entries > kMostEntries) {
    const std::string what = " rows come back to be summed, and fewer than 2^31 can be listed; split the exchange.";
    return traffic_->Refuse(site_->position_at[target], std::to_string(entries) + what);
  }
  if (!kind_.indexed) ListEntries(target, &list);
  result.sum.result = to.destination;
  result.sum.rows = kind_.indexed ? to.indexed_rows : to.destination_rows;
  result.sum.elements = to.row_bytes / static_cast<int64_t>(kernels::ElementBytes(types_.element));
  result.sum.starts = to.device_starts;
  result.sum.entries = to.device_indices;
  result.sum.num_entries = static_cast<int32_t>(kind_.indexed ? to.destination_rows : entries);
  result.sum.num_slices = static_cast<int64_t>(list.slices.size() - result.first_slice);
  result.sum.aligned = kernels::IsAligned(result.sum, &list.slices[result.first_slice], types_);
  list.results.push_back(result);
  return Status::Ok();
}

// Counts what lands on each row, and then lists it in the order in which it is to be summed.
void LaunchSchedule::ListEntries(int32_t target, SumList* list) {
  const auto rows = static_cast<size_t>(ArgsOf(target).destination_rows);
  const size_t first_entry = list->entries.size();
  next_.assign(rows + 1, 0);
  traffic_->ForEachReturned(target, returned_, [&](int32_t, const Run& run, int64_t) {
    for (int64_t i = 0; i < run.rows; ++i) ++next_[static_cast<size_t>(run.destination_row + i + 1)];
  });
  std::partial_sum(next_.begin(), next_.end(), next_.begin());
  list->starts.insert(list->starts.end(), next_.begin(), next_.end());
  list->entries.resize(first_entry + static_cast<size_t>(next_.back()));
  int32_t entry = 0;
  traffic_->ForEachReturned(target, returned_, [&](int32_t, const Run& run, int64_t) {
    for (int64_t i = 0; i < run.rows; ++i) {
      const auto at = static_cast<size_t>(next_[static_cast<size_t>(run.destination_row + i)]++);
      list->entries[first_entry + at] = entry++;
    }
  });
}

// Where the first row of a run is, and its factor: on its origin, or in the buffer that it has arrived in.
kernels::Summand LaunchSchedule::FirstOf(int32_t target, int32_t origin, const Run& run, int64_t done) const {
  const int32_t arrival = lowering_.ArrivalOf(origin, target);
  if (arrival < 0) return ArgsOf(origin).SummandAt(run.source_row);
  const std::byte* const rows = BufferOf(arrival);
  const std::byte* const factors = rows + traffic_->rows(origin, target) * placement_.row_bytes();
  return {rows + done * placement_.row_bytes(), factor_bytes_ == 0 ? nullptr : factors + done * factor_bytes_};
}

}  // namespace fastjax::gpu
