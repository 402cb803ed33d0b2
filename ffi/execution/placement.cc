#include "execution/placement.h"

#include <string>
#include <utility>

namespace fastjax {
namespace {

// Rows that are written to memory larger than the caches are written with non-temporal stores, which is faster.
constexpr int64_t kStreamBytes = 8 << 20;

}  // namespace

Status Placement::WrongPlan() const {
  return Status::Invalid(site_->Prefix() +
                         "the plan moves rows that the exchange does not have. "
                         "Pass what plan_ragged_all_to_all returned, unchanged.");
}

void Placement::Begin(const CallSite& site, const std::vector<ExchangeArgs>& args, int64_t row_bytes,
                      const GroupTraffic& traffic) {
  site_ = &site;
  args_ = &args;
  traffic_ = &traffic;
  row_bytes_ = row_bytes;
  output_stores_ = kernels::Destination::kCached;
  staging_rows_.assign(static_cast<size_t>(site.group_size), -1);
  staging_at_.assign(static_cast<size_t>(site.group_size), nullptr);
}

Status Placement::TakeStaging(const DevicePlans& plans, const StagingMemory& memory) {
  int64_t arriving_rows = 0;
  int64_t rows = 0;
  for (int32_t rank = 0; rank < site_->group_size; ++rank) {
    const DevicePlan& plan = plans[static_cast<size_t>(rank)];
    if (!plan.here) continue;
    staging_rows_[static_cast<size_t>(rank)] = plan.staging_rows;
    rows += plan.staging_rows;
    for (int32_t origin = 0; origin < site_->group_size; ++origin) arriving_rows += traffic_->rows(origin, rank);
  }
  if (arriving_rows * row_bytes_ >= kStreamBytes) output_stores_ = kernels::Destination::kStreamed;
  if (rows * row_bytes_ == 0) return Status::Ok();
  if (memory == nullptr) staging_ = StagingPool::Get().Take(rows * row_bytes_);
  std::byte* next = staging_.data();
  for (size_t rank = 0; rank < staging_rows_.size(); ++rank) {
    const int64_t bytes = staging_rows_[rank] * row_bytes_;
    if (bytes <= 0) continue;
    staging_at_[rank] = memory == nullptr ? next : memory(static_cast<int32_t>(rank), bytes);
    if (staging_at_[rank] == nullptr) {
      return Status::Internal(site_->Prefix() + "no memory for " +
                              std::to_string(memory == nullptr ? rows * row_bytes_ : bytes) +
                              " bytes of staging; use scheduler=\"direct\", which needs none.");
    }
    next += bytes;
  }
  return Status::Ok();
}

void Placement::Release() {
  if (staging_.bytes() > 0) StagingPool::Get().Return(std::move(staging_));
  staging_ = {};
}

}  // namespace fastjax
