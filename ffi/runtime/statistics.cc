#include "runtime/statistics.h"

#include <algorithm>
#include <utility>

namespace fastjax {

void Times::Add(int64_t time) {
  ++count;
  last = time;
  total += time;
  most = std::max(most, time);
}

double SkewOf(const std::vector<int64_t>& traffic, int32_t ranks) {
  std::vector<int64_t> receives(static_cast<size_t>(ranks), 0);
  int64_t total = 0;
  int64_t most = 0;
  const int64_t* rows = traffic.data();
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int64_t sends = 0;
    for (int64_t& arrived : receives) {
      sends += *rows;
      arrived += *rows++;
    }
    total += sends;
    most = std::max(most, sends);
  }
  for (const int64_t arrived : receives) most = std::max(most, arrived);
  return total == 0 ? 1.0 : static_cast<double>(most) * ranks / static_cast<double>(total);
}

std::shared_ptr<Record> Records::Open(std::shared_ptr<const CallSite> site, SiteKind kind) {
  auto record = std::make_shared<Record>();
  record->report = {std::move(site), kind, true, {}};
  const std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back(record);
  return record;
}

void Records::Close(const std::shared_ptr<Record>& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record->report.active = false;
  DropEnded(kMaxEnded);
}

std::vector<SiteReport> Records::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SiteReport> reports;
  for (const auto& record : records_) {
    const std::lock_guard<std::mutex> own(record->mutex);
    if (!record->report.statistics.empty()) reports.push_back(record->report);
  }
  return reports;
}

void Records::Reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  DropEnded(0);
  for (const auto& record : records_) {
    const std::lock_guard<std::mutex> own(record->mutex);
    record->report.statistics = {};
  }
}

// Keeps the newest of those that have done something.
void Records::DropEnded(size_t kept) {
  const auto goes = [&kept](const std::shared_ptr<Record>& record) {
    if (record->report.active) return false;
    const std::lock_guard<std::mutex> own(record->mutex);
    if (kept == 0 || record->report.statistics.empty()) return true;
    --kept;
    return false;
  };
  const auto first = std::remove_if(records_.rbegin(), records_.rend(), goes);
  records_.erase(records_.begin(), first.base());
}

}  // namespace fastjax
