// Rows that indices name: gathered on the way there, and summed on the way back. The indices stay on the devices.
#include "backends/gpu/launch_schedule.h"

namespace fastjax::gpu {

void LaunchSchedule::AddGather(int32_t call, MoveList* list, std::byte* dst, int32_t origin, const Run& run) {
  const int64_t bytes = run.rows * placement_.row_bytes();
  if (bytes == 0) return;
  auto& gathers = gathers_[static_cast<size_t>(call)];
  const ExchangeArgs& from = ArgsOf(origin);
  const int64_t begin = list->Extend(gathers.size(), dst, bytes);
  gathers.push_back({dst, from.source, from.device_indices + run.source_row, from.indexed_rows, begin, bytes});
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
