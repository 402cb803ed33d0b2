// Rows that land on each other, on the way back.
#ifndef FASTJAX_TRANSPORT_EXECUTION_SUM_H_
#define FASTJAX_TRANSPORT_EXECUTION_SUM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/copy.h"
#include "transport/group.h"
#include "transport/status.h"
#include "transport/traffic.h"
#include "transport/transport.h"

namespace fastjax::transport::execution {

// Refuses elements that cannot be summed. Every device has the same.
inline Status CheckSummable(const CallSite& site, const ExchangeArgs& args) {
  if (args.element != kernels::ElementKind::kOpaque) return Status::Ok();
  return Status::Invalid(site.Prefix() + "input slices overlap, and gradients of this element type cannot be summed.");
}

// Sums what lands on rank `target`, whose arguments are `to`, by rank of its origin, so that the result does not depend
// on who was first. source(origin, run, done) is where the rows of a run lie; `done` rows of its block came before it.
template <typename Source>
void SumLandings(const GroupTraffic& traffic, int32_t devices, int32_t target, const ExchangeArgs& to, Source source) {
  const int64_t row_bytes = to.row_bytes;
  if (row_bytes == 0) return;  // buffers without bytes may have no address
  const auto each = [&](auto&& visit) {
    for (int32_t origin = 0; origin < devices; ++origin) {
      int64_t done = 0;
      traffic.ForEachRun(origin, target, 0, traffic.rows(origin, target), [&](const Run& run) {
        visit(to.destination + run.destination_row * row_bytes, source(origin, run, done),
              static_cast<size_t>(run.rows * row_bytes));
        done += run.rows;
      });
    }
  };
  each([](std::byte* dst, const std::byte*, size_t bytes) { std::memset(dst, 0, bytes); });
  each([&](std::byte* dst, const std::byte* src, size_t bytes) { kernels::Add(dst, src, bytes, to.element); });
}

}  // namespace fastjax::transport::execution

#endif  // FASTJAX_TRANSPORT_EXECUTION_SUM_H_
