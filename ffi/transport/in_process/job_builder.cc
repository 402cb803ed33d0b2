#include "transport/in_process/job_builder.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/table.h"

namespace fastjax::transport::in_process {
namespace {

using planner::Phase;
using planner::Transfer;

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

Status JobBuilder::Build(const CallSite& site, const std::vector<ExchangeArgs>& args,
                         const std::vector<const int32_t*>& tables, const GroupTraffic& traffic, bool backwards) {
  job_.Clear();
  ops_.clear();
  if (!StagesHaveEntries(tables)) return execution::NotOfThisExchange(site);
  const int64_t row_bytes = args.front().row_bytes;
  if (Status status = placement_.Begin(site, args, row_bytes, tables, traffic); !status.ok()) return status;
  int32_t steps = 0;
  for (int32_t rank = 0; rank < site.group_size; ++rank) {
    const planner::TableView table(tables[rank]);
    for (int32_t i = 0; i < table.entries(); ++i) {
      Transfer transfer = table.entry(i);
      if (backwards) transfer = planner::Transposed(transfer, table.stages());
      // A transfer stands in the tables of both its ends; the sender's counts.
      if (transfer.src != rank) continue;
      const int32_t step = std::max(0, StepOf(transfer));
      steps = std::max(steps, step + 1);
      if (Status status = placement_.Check(transfer); !status.ok()) return status;
      placement_.ForEachCopy(transfer, [&](const execution::CopyOp& op) { ops_.push_back({step, op}); });
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

}  // namespace fastjax::transport::in_process
