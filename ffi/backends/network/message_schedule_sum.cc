// Messages of rows that land on each other: on the way back of slices, or of rows that indices name, which were sent to
// several devices. They go straight to their target, which sums them.
#include <string>

#include "backends/network/message_schedule.h"
#include "execution/sum.h"

namespace fastjax::network {

Status MessageSchedule::BuildSum(const CallSite& site, int32_t group, int32_t process,
                                 const std::vector<ExchangeArgs>& args, const GroupTraffic& traffic) {
  Begin(site, group, process, args, traffic);
  if (!IsHere()) return Status::Ok();
  if (Status status = CheckSummable(site, Here()); !status.ok()) return status;
  placement_.Begin(site, args, Here().row_bytes, traffic);
  if (placement_.row_bytes() == 0) return Status::Ok();  // nothing to move
  lowering_.LowerBlocks(reach_, traffic, placement_);
  if (Status status = PlaceArrivals(); !status.ok()) return status;
  for (size_t i = 0; i < steps().size(); ++i) {
    const Step& step = steps()[i];
    AddStep(step);
    if (step.action == Action::kReceive) {
      AddPiece(arrivals_.data() + arrival_[i], traffic.rows(step.peer, step.here) * placement_.row_bytes());
    } else {
      AddRows(step);
    }
  }
  FindQueues();
  sums_ = true;
  return Status::Ok();
}

// Receives come first of all steps.
Status MessageSchedule::PlaceArrivals() {
  arrival_.clear();
  int64_t bytes = 0;
  for (const Step& step : steps()) {
    if (step.action != Action::kReceive) break;
    arrival_.push_back(bytes);
    bytes += traffic_->rows(step.peer, step.here) * placement_.row_bytes();
  }
  if (bytes > 0) arrivals_ = StagingPool::Get().Take(bytes);
  if (arrivals_.bytes() >= bytes) return Status::Ok();
  return Status::Internal(site_->Prefix() + "no memory for " + std::to_string(bytes) +
                          " bytes of rows to be summed; exchange fewer rows at a time.");
}

void MessageSchedule::Sum() const {
  const int64_t row_bytes = placement_.row_bytes();
  for (const int32_t target : lowering_.devices()) {
    SumLandings(*traffic_, site_->group_size, target, (*args_)[site_->position_at[target]],
                [&](int32_t origin, const Run& run, int64_t done) -> const std::byte* {
                  const int32_t step = lowering_.ArrivalOf(origin, target);
                  if (step >= 0) return arrivals_.data() + arrival_[step] + done * row_bytes;
                  return (*args_)[site_->position_at[origin]].source + run.source_row * row_bytes;
                });
  }
}

}  // namespace fastjax::network
