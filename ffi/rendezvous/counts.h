// Declares call sites that only plan: they gather and plan the devices' counts, and move nothing.
#ifndef FASTJAX_RENDEZVOUS_COUNTS_H_
#define FASTJAX_RENDEZVOUS_COUNTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "rendezvous/process_group.h"
#include "runtime/recorder.h"

namespace fastjax {

// What the counts of all are gathered in, and planned from, for one launch after the other.
class CountsWork {
 public:
  // Gathers, and if there is a plan, writes the tables of the devices of these ranks. `args` is by position.
  Status GatherAndPlan(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args,
                       const std::vector<int32_t>& ranks, const PlanFunction& plan, Launch* launch);
  LaunchSummary Summary(const CallSite& site) const {
    return {traffic_.data(), site.plan_row_bytes, 0, stages_, scheduler_};
  }

 private:
  void Gather(const std::vector<CountsArgs>& args);
  Status Sum(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args);
  void SumAtHome(const CallSite& site);

  std::vector<int64_t> traffic_;  // rank by rank
  std::vector<int64_t> sizes_;
  int32_t stages_ = 0;  // of the last plan, if there is any
  int32_t scheduler_ = -1;
};

// Opens a call site. For devices of one process, without a process group: the last device to arrive plans with the
// counts of all. For devices of several: each process gets the counts of all, makes the same plan, and writes its own
// devices' tables.
std::shared_ptr<Counts> OpenCounts(std::shared_ptr<ProcessGroup> process_group,
                                   const std::shared_ptr<const CallSite>& site, PlanFunction plan);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_COUNTS_H_
