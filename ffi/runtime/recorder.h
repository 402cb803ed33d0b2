// Declares Recorder, which collects the statistics of one call site while it runs.
#ifndef FASTJAX_RUNTIME_RECORDER_H_
#define FASTJAX_RUNTIME_RECORDER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "runtime/statistics.h"

namespace fastjax {

// The measurements of one exchange or planning that is in progress; empty while no statistics are collected.
struct Launch {
  bool recorded = false;
  bool planned = false;    // the call site has planned,
  bool plan_made = false;  // and no plan had been kept for this traffic
  int64_t planning_ns = 0;
  std::chrono::steady_clock::time_point start;

  // Excludes the time before this call.
  void Restart() {
    if (recorded) start = std::chrono::steady_clock::now();
  }
};

// What a launch moved, given when it has succeeded.
struct LaunchSummary {
  const int64_t* sent = nullptr;  // rows, rank by rank, by the metadata
  int64_t row_bytes = 0;
  int64_t dropped = 0;  // rows that were out of range
  int32_t stages = 0;
  int32_t scheduler = -1;  // that made the plan: planner::Scheduler's number
};

// Returns plan(bool* made), and records in `launch` how long it took.
template <typename Plan>
Status PlanRecorded(const Plan& plan, Launch* launch) {
  if (!launch->recorded) return plan(&launch->plan_made);
  const auto start = std::chrono::steady_clock::now();
  Status status = plan(&launch->plan_made);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  launch->planning_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  launch->planned = true;
  return status;
}

class Recorder {
 public:
  // Without a call site nothing is collected.
  Recorder(std::shared_ptr<const CallSite> site, SiteKind kind)
      : record_(site == nullptr ? nullptr : Records::Get().Open(std::move(site), kind)) {}
  Recorder(std::shared_ptr<const CallSite> site, const ExchangeOptions& options, bool queues);
  ~Recorder() {
    if (record_ != nullptr) Records::Get().Close(record_);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Loads one flag, which is all that a launch costs while no statistics are collected.
  Launch Begin() const {
    Launch launch;
    launch.recorded = record_ != nullptr && Records::collecting();
    launch.Restart();
    return launch;
  }
  // To be called once for each launch that has begun, before its devices are told. Without memory, nothing is recorded.
  void End(const Launch& launch, const Status& status, const LaunchSummary& summary);
  // Counts a launch that failed before it began.
  void Fail() { End(Begin(), Status::Internal(""), {}); }

 private:
  void Add(const Launch& launch, const Status& status, const LaunchSummary& summary, int64_t elapsed_ns);

  const std::shared_ptr<Record> record_;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_RECORDER_H_
