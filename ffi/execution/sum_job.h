// Declares SumJob: the sums of rows that land on each other, for the copy pool.
#ifndef FASTJAX_EXECUTION_SUM_JOB_H_
#define FASTJAX_EXECUTION_SUM_JOB_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/group_traffic.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "kernels/sum.h"
#include "runtime/copy_pool.h"

namespace fastjax {

// Refuses types of elements that cannot be summed. Every device has the same type.
inline Status CheckSummable(const CallSite& site, const ExchangeArgs& args) {
  if (kernels::CanSum(args.sum_types())) return Status::Ok();
  return Status::Invalid(site.Prefix() + "input slices overlap, and gradients of this element type cannot be summed.");
}

// Each row of the results is summed by one thread, in the order of GroupTraffic::ListReturned: so the bits are the same
// with any number of threads. Reused by later exchanges; it does not allocate once it has seen the largest. Units are
// rows that are summed.
class SumJob final : public PoolJob {
 public:
  // Begins a job for devices whose types and row sizes are those of `any`.
  void Begin(const ExchangeArgs& any);
  // Adds what lands on rank `target`, whose arguments are `to`. source(origin, run, done) is the first row of a run, as
  // kernels::Summand; those behind it, and their factors, follow it without gaps. All of it must stay until the job has
  // been run.
  template <typename Source>
  void Add(const GroupTraffic& traffic, int32_t target, const ExchangeArgs& to, Source source);

  int64_t bytes() const override { return static_cast<int64_t>(summands_.size()) * row_bytes_; }

 private:
  struct Row {
    std::byte* result;
    size_t first;  // of its summands
  };

  bool BeginStep(size_t step) override;
  void RunUnits(int64_t begin, int64_t end) override;
  // Turns counts of summands into places: next_[row] is where the next summand of that row of a result goes.
  void Place(const ExchangeArgs& to);

  kernels::SumTypes types_ = {};
  int64_t row_bytes_ = 0;
  int64_t factor_bytes_ = 0;
  size_t elements_ = 0;                     // of a row
  std::vector<Row> rows_;                   // the rows of results on which rows land
  std::vector<kernels::Summand> summands_;  // row by row
  std::vector<size_t> next_;
  std::vector<ReturnedSlice> slices_;  // of one target
};

template <typename Source>
void SumJob::Add(const GroupTraffic& traffic, int32_t target, const ExchangeArgs& to, Source source) {
  if (row_bytes_ == 0) return;  // buffers without bytes may have no address
  next_.assign(static_cast<size_t>(to.result_rows()), 0);
  traffic.ListReturned(target, &slices_);
  traffic.ForEachReturned(target, slices_, [this](int32_t, const Run& run, int64_t) {
    for (int64_t i = 0; i < run.rows; ++i) ++next_[static_cast<size_t>(run.destination_row + i)];
  });
  Place(to);
  traffic.ForEachReturned(target, slices_, [&](int32_t origin, const Run& run, int64_t done) {
    kernels::Summand summand = source(origin, run, done);
    for (int64_t i = 0; i < run.rows; ++i) {
      summands_[next_[static_cast<size_t>(run.destination_row + i)]++] = summand;
      summand.row += row_bytes_;
      if (summand.factor != nullptr) summand.factor += factor_bytes_;
    }
  });
}

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_SUM_JOB_H_
