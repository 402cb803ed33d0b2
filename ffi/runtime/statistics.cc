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

double SkewOf(const std::vector<int64_t>& traffic, int32_t ranks, std::vector<int64_t>* scratch) {
  std::vector<int64_t>& receives = *scratch;
  receives.assign(static_cast<size_t>(ranks), 0);
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

SiteReport Record::Report() const {
  SiteReport report;
  report.number = number_;
  report.site = site_;
  report.kind = kind_;
  const std::lock_guard<std::mutex> lock(mutex_);
  report.statistics = statistics_;
  return report;
}

Records& Records::Get() {
  static auto& records = *new Records;
  return records;
}

int64_t Records::NextNumber() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<Record> Records::Open(int64_t number, std::shared_ptr<const CallSite> site, SiteKind kind) {
  auto record = std::make_shared<Record>(number, std::move(site), kind);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto before = std::upper_bound(records_.begin(), records_.end(), number,
                                       [](int64_t at, const auto& other) { return at < other->number(); });
  records_.insert(before, record);
  return record;
}

void Records::Close(const std::shared_ptr<Record>& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record->active_ = false;
  DropEnded(kMaxEnded);
}

std::vector<SiteReport> Records::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SiteReport> reports;
  for (const auto& record : records_) {
    SiteReport report = record->Report();
    if (report.statistics.exchanges + report.statistics.failures == 0) continue;
    report.active = record->active_;
    reports.push_back(std::move(report));
  }
  return reports;
}

void Records::Reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  DropEnded(0);
  for (const auto& record : records_) {
    record->Update([](Statistics* statistics) { *statistics = Statistics(); });
  }
}

void Records::DropEnded(size_t kept) {
  auto ended = static_cast<size_t>(
      std::count_if(records_.begin(), records_.end(), [](const auto& record) { return !record->active_; }));
  const auto drop = [&](const auto& record) {
    if (record->active_ || ended <= kept) return false;
    --ended;
    return true;
  };
  // The order of the calls matters to `drop`, which std::remove_if does not promise.
  std::vector<std::shared_ptr<Record>> left;
  for (auto& record : records_) {
    if (!drop(record)) left.push_back(std::move(record));
  }
  records_ = std::move(left);
}

}  // namespace fastjax
