#include "exchange_case.h"

#include <algorithm>
#include <numeric>

#include "planner/table.h"

namespace fastjax::bench {
namespace {

IntView View(const std::vector<int32_t>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), IntKind::kS32};
}

// Where each of the sizes begins if they lie one behind the other.
std::vector<int32_t> Offsets(const std::vector<int32_t>& sizes) {
  std::vector<int32_t> offsets(sizes.size(), 0);
  std::partial_sum(sizes.begin(), sizes.end() - 1, offsets.begin() + 1);
  return offsets;
}

}  // namespace

ExchangeCase::ExchangeCase(const planner::Topology& topology, planner::Scheduler scheduler,
                           const std::vector<int64_t>& traffic)
    : topology_(topology), scheduler_(scheduler) {
  MakeSite();
  MakeDevices(traffic);
  MakeTables(traffic);
}

void ExchangeCase::MakeSite() {
  const int32_t devices = topology_.devices();
  site_.operation = "exchange";
  site_.axis = "'x'";
  site_.group_size = devices;
  site_.group_of.assign(static_cast<size_t>(devices), 0);
  for (int32_t i = 0; i < devices; ++i) {
    site_.position_of.push_back(i);
    site_.process_of.push_back(topology_.server_of(i));
    site_.rail_of.push_back(topology_.local_of(i));
  }
  site_.rank_of = site_.position_at = site_.partition_at = site_.position_of;
}

void ExchangeCase::MakeDevices(const std::vector<int64_t>& traffic) {
  const auto count = static_cast<size_t>(topology_.devices());
  devices_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      devices_[i].send_sizes.push_back(static_cast<int32_t>(traffic[i * count + j]));
      devices_[i].recv_sizes.push_back(static_cast<int32_t>(traffic[j * count + i]));
    }
    devices_[i].input_offsets = Offsets(devices_[i].send_sizes);
  }
  for (size_t j = 0; j < count; ++j) {
    const std::vector<int32_t> landing = Offsets(devices_[j].recv_sizes);
    for (size_t i = 0; i < count; ++i) devices_[i].output_offsets.push_back(landing[i]);
  }
  int64_t most = 0;
  for (const Device& device : devices_) {
    for (const auto* sizes : {&device.send_sizes, &device.recv_sizes}) {
      most = std::max(most, std::accumulate(sizes->begin(), sizes->end(), int64_t{0}));
    }
  }
  rows_.resize(static_cast<size_t>(most));
  for (const Device& device : devices_) {
    ExchangeArgs& args = args_.emplace_back();
    args.source_rows = args.destination_rows = most;
    args.source = args.destination = rows_.data();
    args.row_bytes = 1;
    args.input_offsets = View(device.input_offsets);
    args.send_sizes = View(device.send_sizes);
    args.output_offsets = View(device.output_offsets);
    args.recv_sizes = View(device.recv_sizes);
  }
}

void ExchangeCase::MakeTables(const std::vector<int64_t>& traffic) {
  planner::Planner planner(topology_, scheduler_, kPlannedRowBytes);
  planner.Plan(traffic.data());
  const int64_t words = planner::TableWords(topology_, scheduler_);
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i].table.resize(static_cast<size_t>(words));
    // What cannot be written is an all-zero header, which every exchange refuses.
    (void)planner::WriteTable(&planner, static_cast<int32_t>(i), devices_[i].table.data());
    args_[i].table = devices_[i].table.data();
    args_[i].table_words = words;
  }
}

SliceFunction ExchangeCase::Slices(bool anew) const {
  const auto planner = std::make_shared<planner::Planner>(topology_, scheduler_, kPlannedRowBytes);
  // One row, from the first device to the last: planned in between, it has the other plan forgotten.
  const auto other = std::make_shared<std::vector<int64_t>>(devices_.size() * devices_.size(), 0);
  (*other)[devices_.size() - 1] = 1;
  return [planner, other, anew](const int64_t* traffic, const std::vector<int32_t>& ranks, const TakeSlice& take,
                                bool* planned_anew) {
    if (anew) planner->Plan(other->data());
    *planned_anew = anew;
    planner->Plan(traffic);
    planner::Slicer slicer(planner.get());
    if (!slicer.possible()) return Status::Internal("no slices");
    for (const int32_t rank : ranks) take(slicer.Of(rank));
    return Status::Ok();
  };
}

}  // namespace fastjax::bench
