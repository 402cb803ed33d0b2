#include "transport/in_process/job_builder.h"

#include <algorithm>
#include <string>

namespace fastjax::transport::in_process {
namespace {

using planner::Phase;
using planner::Transfer;

// Rows that land in memory larger than the caches are better written past them.
constexpr int64_t kStreamBytes = 8 << 20;

int32_t StepOf(const Transfer& transfer) {
  switch (transfer.phase) {
    case Phase::kLocal:
      return 0;
    case Phase::kBalance:
      return transfer.stage;
    case Phase::kScaleOut:
      return transfer.stage + 1;
    case Phase::kRedistribute:
      return transfer.stage + 2;
  }
  return 0;
}

Status NotOfThisExchange(const CallSite& site) {
  return Status::Invalid(site.Prefix() +
                         "the plan moves rows that the exchange does not have. Pass what "
                         "plan_ragged_all_to_all returned, unchanged.");
}

// No stage is without a transfer; a table that says otherwise must not decide how much memory is taken.
bool StagesHaveEntries(const std::vector<const int32_t*>& tables) {
  int64_t stages = 0;
  int64_t entries = 0;
  for (const int32_t* words : tables) {
    const planner::TableView table(words);
    stages = std::max<int64_t>(stages, table.stages());
    entries += table.entries();
  }
  return stages <= entries;
}

}  // namespace

Transfer Backwards(Transfer transfer, int32_t stages) {
  std::swap(transfer.src, transfer.dst);
  std::swap(transfer.origin, transfer.target);
  std::swap(transfer.src_row, transfer.dst_row);
  if (transfer.phase == Phase::kBalance) {
    transfer.phase = Phase::kRedistribute;
  } else if (transfer.phase == Phase::kRedistribute) {
    transfer.phase = Phase::kBalance;
  }
  if (transfer.stage >= 0) transfer.stage = stages - 1 - transfer.stage;
  return transfer;
}

bool JobBuilder::InStaging(int32_t rank, int64_t row, int64_t rows) const {
  return row >= 0 && rows <= staging_base_[rank + 1] - staging_base_[rank] - row;
}

Status JobBuilder::PlaceStaging(const CallSite& site, const std::vector<const int32_t*>& tables, int64_t row_bytes) {
  staging_base_.assign(1, 0);
  for (const int32_t* table : tables) {
    staging_base_.push_back(staging_base_.back() + planner::TableView(table).staging_rows());
  }
  const int64_t bytes = staging_base_.back() * row_bytes;
  if (bytes == 0) return Status::Ok();
  staging_ = StagingPool::Get().Take(bytes);
  if (staging_.bytes() >= bytes) return Status::Ok();
  return Status::Internal(site.Prefix() + "no memory for " + std::to_string(bytes) +
                          " bytes of staging; use scheduler=\"direct\", which needs none.");
}

// The table came through the user's program: whatever it says, nothing outside blocks and staging is touched.
Status JobBuilder::AddTransfer(const CallSite& site, const std::vector<ExchangeArgs>& args, const GroupTraffic& traffic,
                               const Transfer& t) {
  const int64_t block_rows = traffic.rows(t.origin, t.target);
  const bool from_operand = t.src_row == Transfer::kInPlace;
  const bool to_output = t.dst_row == Transfer::kInPlace;
  const bool valid = t.rows > 0 && t.first_row >= 0 && t.rows <= block_rows && t.first_row <= block_rows - t.rows &&
                     (from_operand ? t.src == t.origin : InStaging(t.src, t.src_row, t.rows)) &&
                     (to_output ? t.dst == t.target : InStaging(t.dst, t.dst_row, t.rows));
  if (!valid) return NotOfThisExchange(site);
  const ExchangeArgs& origin = args[site.position_at[t.origin]];
  const ExchangeArgs& target = args[site.position_at[t.target]];
  const int64_t row_bytes = origin.row_bytes;
  std::byte* staged_src = from_operand ? nullptr : staging_.data() + (staging_base_[t.src] + t.src_row) * row_bytes;
  std::byte* staged_dst = to_output ? nullptr : staging_.data() + (staging_base_[t.dst] + t.dst_row) * row_bytes;
  if (!from_operand && !to_output) {
    ops_.push_back({step_, {staged_dst, staged_src, t.rows * row_bytes, kernels::Destination::kCached}});
    return Status::Ok();
  }
  int64_t done = 0;
  traffic.ForEachRun(t.origin, t.target, t.first_row, t.rows, [&](const Run& run) {
    const std::byte* src = from_operand ? origin.source + run.source_row * row_bytes : staged_src + done * row_bytes;
    std::byte* dst = to_output ? target.destination + run.destination_row * row_bytes : staged_dst + done * row_bytes;
    ops_.push_back({step_, {dst, src, run.rows * row_bytes, to_output ? landing_ : kernels::Destination::kCached}});
    done += run.rows;
  });
  return Status::Ok();
}

Status JobBuilder::Build(const CallSite& site, const std::vector<ExchangeArgs>& args,
                         const std::vector<const int32_t*>& tables, const GroupTraffic& traffic, bool backwards) {
  job_.Clear();
  ops_.clear();
  if (!StagesHaveEntries(tables)) return NotOfThisExchange(site);
  if (Status status = PlaceStaging(site, tables, args.front().row_bytes); !status.ok()) return status;
  int64_t rows = 0;
  for (int32_t a = 0; a < site.group_size; ++a) {
    for (int32_t b = 0; b < site.group_size; ++b) rows += traffic.rows(a, b);
  }
  landing_ =
      rows * args.front().row_bytes >= kStreamBytes ? kernels::Destination::kStreamed : kernels::Destination::kCached;
  int32_t steps = 0;
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const planner::TableView table(tables[rank]);
    for (int32_t i = 0; i < table.entries(); ++i) {
      Transfer transfer = table.entry(i);
      if (backwards) transfer = Backwards(transfer, table.stages());
      // A transfer stands in the tables of both its ends; the sender's counts.
      if (transfer.src != rank) continue;
      step_ = std::max(0, StepOf(transfer));
      steps = std::max(steps, step_ + 1);
      if (Status status = AddTransfer(site, args, traffic, transfer); !status.ok()) return status;
    }
  }
  step_begin_.assign(static_cast<size_t>(steps) + 1, 0);
  for (const Step& op : ops_) ++step_begin_[static_cast<size_t>(op.step) + 1];
  for (size_t s = 1; s < step_begin_.size(); ++s) step_begin_[s] += step_begin_[s - 1];
  sorted_.resize(ops_.size());
  for (const Step& op : ops_) sorted_[step_begin_[static_cast<size_t>(op.step)]++] = op;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    if (i > 0 && sorted_[i].step != sorted_[i - 1].step) job_.EndStep();
    job_.Add(sorted_[i].op);
  }
  job_.EndStep();
  return Status::Ok();
}

void JobBuilder::Release() {
  if (staging_.bytes() > 0) StagingPool::Get().Return(std::move(staging_));
  staging_ = {};
}

}  // namespace fastjax::transport::in_process
