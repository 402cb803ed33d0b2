// Programs for rows that land on each other. Rare (a slice that was sent to several devices, on the way back), hence
// not staged.
#include <string>

#include "transport/execution/sum.h"
#include "transport/network/program.h"

namespace fastjax::transport::network {
namespace {

using planner::Phase;
using planner::Transfer;

Transfer WholeBlock(int32_t origin, int32_t target, int64_t rows) {
  return {Phase::kLocal, -1, origin, target, origin, target, 0, rows, Transfer::kInPlace, Transfer::kInPlace};
}

}  // namespace

Status Program::BuildSum(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
                         const GroupTraffic& traffic) {
  Begin(site, group, process);
  args_ = &args;
  traffic_ = &traffic;
  if (devices_.empty()) return Status::Ok();
  if (Status status = execution::CheckSummable(site, Here()); !status.ok()) return status;
  const int64_t row_bytes = Here().row_bytes;
  no_tables_.assign(site.group_size, nullptr);
  if (Status status = placement_.Begin(site, args, row_bytes, no_tables_, traffic); !status.ok()) return status;
  if (row_bytes == 0) return Status::Ok();  // nothing to move
  if (Status status = PlaceArrivals(); !status.ok()) return status;
  stages_.push_back(-1);
  for (const Action action : {Action::kReceive, Action::kSend}) {
    for (const int32_t here : devices_) AddBlocks(action, here);
  }
  FindQueues();
  sums_ = true;
  return Status::Ok();
}

Status Program::PlaceArrivals() {
  arrival_.clear();
  int64_t rows = 0;
  for (const int32_t target : devices_) {
    for (int32_t origin = 0; origin < site_->group_size; ++origin) {
      arrival_.push_back(rows * placement_.row_bytes());
      if (device_at_[origin] < 0) rows += traffic_->rows(origin, target);
    }
  }
  const int64_t bytes = rows * placement_.row_bytes();
  if (bytes > 0) arrivals_ = execution::StagingPool::Get().Take(bytes);
  if (arrivals_.bytes() >= bytes) return Status::Ok();
  return Status::Internal(site_->Prefix() + "no memory for " + std::to_string(bytes) +
                          " bytes of rows to be summed; exchange fewer rows at a time.");
}

std::byte* Program::Arrival(int32_t origin, int32_t target) const {
  const size_t at = static_cast<size_t>(device_at_[target]) * static_cast<size_t>(site_->group_size);
  return arrivals_.data() + arrival_[at + static_cast<size_t>(origin)];
}

void Program::AddBlocks(Action action, int32_t here) {
  for (int32_t peer = 0; peer < site_->group_size; ++peer) {
    const bool receives = action == Action::kReceive;
    const int64_t rows = receives ? traffic_->rows(peer, here) : traffic_->rows(here, peer);
    if (device_at_[peer] >= 0 || rows == 0) continue;
    const Transfer block = receives ? WholeBlock(peer, here, rows) : WholeBlock(here, peer, rows);
    AddStep(action, block, 0);
    if (receives) {
      AddPiece(Arrival(peer, here), rows * placement_.row_bytes());
    } else {
      AddRows(block);
    }
  }
}

void Program::Sum() const {
  const int64_t row_bytes = placement_.row_bytes();
  for (const int32_t target : devices_) {
    execution::SumLandings(*traffic_, site_->group_size, target, (*args_)[site_->position_at[target]],
                           [&](int32_t origin, const Run& run, int64_t done) -> const std::byte* {
                             if (device_at_[origin] < 0) return Arrival(origin, target) + done * row_bytes;
                             return (*args_)[site_->position_at[origin]].source + run.source_row * row_bytes;
                           });
  }
}

}  // namespace fastjax::transport::network
