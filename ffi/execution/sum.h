// Declares the order in which rows are summed that land on each other in reverse.
#ifndef FASTJAX_EXECUTION_SUM_H_
#define FASTJAX_EXECUTION_SUM_H_

#include <cstdint>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/group_traffic.h"
#include "exchange/status.h"
#include "kernels/sum.h"

namespace fastjax {

// Refuses types of elements that cannot be summed. Every device has the same type.
inline Status CheckSummable(const CallSite& site, const ExchangeArgs& args) {
  if (kernels::CanSum(args.sum_types())) return Status::Ok();
  return Status::Invalid(site.Prefix() + "input slices overlap, and gradients of this element type cannot be summed.");
}

// Calls visit(origin, run, done) for all that lands on rank `target`, in the order in which it is to be summed: by rank
// of its origin, and of one origin in the order of its runs. The result then does not depend on what came first. `done`
// rows of the run's block came before it.
template <typename Visit>
void ForEachLanding(const GroupTraffic& traffic, int32_t devices, int32_t target, Visit visit) {
  for (int32_t origin = 0; origin < devices; ++origin) {
    int64_t done = 0;
    traffic.ForEachRun(origin, target, 0, traffic.rows(origin, target), [&](const Run& run) {
      visit(origin, run, done);
      done += run.rows;
    });
  }
}

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_SUM_H_
