// Declares in which order rows are summed that land on each other on the way back.
#ifndef FASTJAX_EXECUTION_SUM_H_
#define FASTJAX_EXECUTION_SUM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/group_traffic.h"
#include "exchange/status.h"
#include "kernels/copy.h"

namespace fastjax {

// Refuses elements that cannot be summed. Every device has the same.
inline Status CheckSummable(const CallSite& site, const ExchangeArgs& args) {
  if (args.element != kernels::ElementKind::kOpaque) return Status::Ok();
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

// Sums what lands on rank `target`, whose arguments are `to`. source(origin, run, done) is where the rows of a run lie.
template <typename Source>
void SumLandings(const GroupTraffic& traffic, int32_t devices, int32_t target, const ExchangeArgs& to, Source source) {
  const int64_t row_bytes = to.row_bytes;
  if (row_bytes == 0) return;  // buffers without bytes may have no address
  const auto output = [&](const Run& run) { return to.destination + run.destination_row * row_bytes; };
  const auto bytes = [&](const Run& run) { return static_cast<size_t>(run.rows * row_bytes); };
  ForEachLanding(traffic, devices, target,
                 [&](int32_t, const Run& run, int64_t) { std::memset(output(run), 0, bytes(run)); });
  ForEachLanding(traffic, devices, target, [&](int32_t origin, const Run& run, int64_t done) {
    kernels::Add(output(run), source(origin, run, done), bytes(run), to.element);
  });
}

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_SUM_H_
