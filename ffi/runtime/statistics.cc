#include "runtime/statistics.h"

#include <algorithm>

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

int64_t Records::NextNumber() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Records::Close(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = reports_.find(number);
  if (at == reports_.end()) return;
  at->second.active = false;
  DropEnded(kMaxEnded);
}

std::vector<SiteReport> Records::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SiteReport> reports;
  for (const auto& [number, report] : reports_) {
    if (report.statistics.exchanges + report.statistics.failures > 0) reports.push_back(report);
  }
  return reports;
}

void Records::Reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  DropEnded(0);
  for (auto& [number, report] : reports_) report.statistics = Statistics();
}

void Records::DropEnded(size_t kept) {
  auto ended = std::count_if(reports_.begin(), reports_.end(), [](const auto& each) { return !each.second.active; });
  for (auto at = reports_.begin(); at != reports_.end() && ended > static_cast<int64_t>(kept);) {
    if (at->second.active) {
      ++at;
    } else {
      at = reports_.erase(at);
      --ended;
    }
  }
}

}  // namespace fastjax
