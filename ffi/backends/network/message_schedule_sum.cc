// Implements messages of rows that land on each other: in reverse, of slices, or of rows that indices name, which were
// sent to several devices. They go straight to their target, which sums them.
#include <string>

#include "backends/network/message_schedule.h"
#include "execution/sum_job.h"

namespace fastjax::network {

Status MessageSchedule::BuildSum(const CallSite& site, int32_t group, int32_t process,
                                 const std::vector<ExchangeArgs>& args, const GroupTraffic& traffic) {
  Begin(site, group, process, args, traffic);
  if (Status status = CheckSummable(site, Here()); !status.ok()) return status;
  placement_.Begin(site, args, Here().row_bytes, traffic);
  sum_job_.Begin(Here());
  if (placement_.row_bytes() == 0) return Status::Ok();  // nothing to move
  lowering_.LowerBlocks(reach_, traffic, placement_);
  if (Status status = PlaceArrivals(); !status.ok()) return status;
  for (size_t i = 0; i < steps().size(); ++i) {
    const Step& step = steps()[i];
    AddStep(step);
    if (step.action == Action::kReceive) {
      AddIov(arrivals_.data() + arrival_[i], ArrivalBytes(step));
    } else {
      AddRows(step);
      AddFactors(step);
    }
  }
  FindQueues();
  PlaceSums();
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
    bytes += ArrivalBytes(step);
  }
  if (bytes > 0) arrivals_ = StagingPool::Get().Take(bytes);
  if (arrivals_.bytes() >= bytes) return Status::Ok();
  return Status::Internal(site_->Prefix() + "no memory for " + std::to_string(bytes) +
                          " bytes of rows to be summed; exchange fewer rows at a time.");
}

int64_t MessageSchedule::ArrivalBytes(const Step& step) const {
  return traffic_->rows(step.peer, step.here) * (placement_.row_bytes() + Here().factor_bytes());
}

void MessageSchedule::AddFactors(const Step& step) {
  const ExchangeArgs& origin = (*args_)[site_->position_at[step.here]];
  if (origin.factors == nullptr) return;
  traffic_->ForEachRun(step.here, step.peer, 0, traffic_->rows(step.here, step.peer), [&](const Run& run) {
    const std::byte* const factors = origin.SummandAt(run.source_row).factor;
    AddIov(const_cast<std::byte*>(factors), run.rows * origin.factor_bytes());  // NOLINT(*-const-cast): sends only
  });
}

void MessageSchedule::PlaceSums() {
  const int64_t row_bytes = placement_.row_bytes();
  const int64_t factor_bytes = Here().factor_bytes();
  for (const int32_t target : lowering_.devices()) {
    const auto source = [&](int32_t origin, const Run& run, int64_t done) -> kernels::Summand {
      const int32_t step = lowering_.ArrivalOf(origin, target);
      if (step < 0) return (*args_)[site_->position_at[origin]].SummandAt(run.source_row);
      const std::byte* const rows = arrivals_.data() + arrival_[step];
      const std::byte* const factors = rows + traffic_->rows(origin, target) * row_bytes;
      return {rows + done * row_bytes, factor_bytes == 0 ? nullptr : factors + done * factor_bytes};
    };
    sum_job_.Add(*traffic_, target, (*args_)[site_->position_at[target]], source);
  }
}

}  // namespace fastjax::network
