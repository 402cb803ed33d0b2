#include "execution/sum_job.h"

#include <algorithm>

namespace fastjax {

void SumJob::Begin(const ExchangeArgs& any) {
  types_ = any.sum_types();
  row_bytes_ = any.row_bytes;
  factor_bytes_ = any.factor_bytes();
  elements_ = static_cast<size_t>(row_bytes_) / kernels::ElementBytes(types_.element);
  rows_.clear();
  summands_.clear();
}

void SumJob::Place(const ExchangeArgs& to) {
  const size_t result_bytes = elements_ * kernels::ElementBytes(types_.sum);
  size_t count = summands_.size();
  for (size_t row = 0; row < next_.size(); ++row) {
    if (next_[row] == 0) continue;
    rows_.push_back({to.destination + row * result_bytes, count});
    count += next_[row];
    next_[row] = rows_.back().first;
  }
  summands_.resize(count);
}

bool SumJob::BeginStep(size_t step) {
  if (step > 0 || summands_.empty()) return false;
  const auto units = static_cast<int64_t>(summands_.size());
  SetUnits(units, std::max<int64_t>(1, CopyPool::GrainBytes(bytes()) / row_bytes_));
  return true;
}

// Sums the rows whose first summand is one of the units [begin, end).
void SumJob::RunUnits(int64_t begin, int64_t end) {
  const auto before = [](const Row& row, int64_t unit) { return static_cast<int64_t>(row.first) < unit; };
  auto row = std::lower_bound(rows_.begin(), rows_.end(), begin, before);
  for (; row != rows_.end() && static_cast<int64_t>(row->first) < end; ++row) {
    const size_t after = row + 1 == rows_.end() ? summands_.size() : (row + 1)->first;
    kernels::AddUp(row->result, elements_, types_, summands_.data() + row->first, after - row->first);
  }
}

}  // namespace fastjax
