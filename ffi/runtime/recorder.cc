#include "runtime/recorder.h"

#include <numeric>
#include <utility>

namespace fastjax {
namespace {

using std::chrono::steady_clock;

int64_t NanosecondsSince(steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - start).count();
}

SiteKind KindOf(const ExchangeOptions& options, bool queues) {
  const PlanSource given = options.transposed_table ? PlanSource::kGivenTransposed : PlanSource::kGiven;
  return {options.plan ? PlanSource::kSelf : given, options.reverse, queues};
}

// Copies the traffic matrix in the direction in which the rows travel: transposed on the way back.
void CopyTraffic(const int64_t* sent, size_t ranks, bool reverse, std::vector<int64_t>* traffic) {
  traffic->assign(sent, sent + ranks * ranks);
  for (size_t i = 0; reverse && i < ranks; ++i) {
    for (size_t j = 0; j < i; ++j) std::swap((*traffic)[i * ranks + j], (*traffic)[j * ranks + i]);
  }
}

}  // namespace

Recorder::Recorder(std::shared_ptr<const CallSite> site, const ExchangeOptions& options, bool queues)
    : Recorder(std::move(site), KindOf(options, queues)) {}

void Recorder::End(const Launch& launch, const Status& status, const LaunchSummary& summary) {
  if (!launch.recorded) return;
  const int64_t elapsed = NanosecondsSince(launch.start);
  static_cast<void>(Guarded([&] { Add(launch, status, summary, elapsed); }));
}

void Recorder::Add(const Launch& launch, const Status& status, const LaunchSummary& summary, int64_t elapsed_ns) {
  const SiteReport& report = record_->report;
  const int32_t ranks = report.site->group_size;
  const std::lock_guard<std::mutex> lock(record_->mutex);
  Statistics* const statistics = &record_->report.statistics;
  if (!status.ok()) {
    ++statistics->failures;
    return;
  }
  CopyTraffic(summary.sent, static_cast<size_t>(ranks), report.kind.reverse, &statistics->traffic);
  statistics->skew = SkewOf(statistics->traffic, ranks);
  ++statistics->exchanges;
  statistics->rows = std::accumulate(statistics->traffic.begin(), statistics->traffic.end(), int64_t{0});
  statistics->total_rows += statistics->rows;
  statistics->dropped_rows += summary.dropped;
  statistics->row_bytes = summary.row_bytes;
  statistics->total_bytes += statistics->rows * summary.row_bytes;
  statistics->total_skew += statistics->skew;
  statistics->stages = summary.stages;
  statistics->scheduler = summary.scheduler;
  if (launch.planned) {
    ++(launch.plan_made ? statistics->plans_made : statistics->plans_reused);
    statistics->planning.Add(launch.planning_ns);
  }
  if (report.kind.plan != PlanSource::kNone) statistics->exchange.Add(elapsed_ns);
}

}  // namespace fastjax
