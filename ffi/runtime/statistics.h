// Declares Records: statistics of exchanges, by call site. They are kept after the executable is gone.
#ifndef FASTJAX_RUNTIME_STATISTICS_H_
#define FASTJAX_RUNTIME_STATISTICS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exchange/call_site.h"
#include "runtime/process_state.h"

namespace fastjax {

// What a call site does with plans.
enum class PlanSource : uint8_t {
  kNone,             // it plans, and moves nothing
  kSelf,             // it plans what it moves
  kGiven,            // it moves by a plan that was made before
  kGivenTransposed,  // it moves by a plan of the reverse direction
};

struct SiteKind {
  PlanSource plan = PlanSource::kNone;
  bool reverse = false;
  bool queues = false;  // an exchange has ended when its work is on GPUs' streams
};

// Nanoseconds.
struct Times {
  int64_t count = 0;
  int64_t last = 0;
  int64_t total = 0;
  int64_t most = 0;

  void Add(int64_t time);
};

struct Statistics {
  int64_t exchanges = 0;  // or plannings, of a site that moves nothing; those that ended well
  int64_t failures = 0;
  int64_t plans_made = 0;
  int64_t plans_reused = 0;
  int64_t rows = 0;  // of the last
  int64_t total_rows = 0;
  int64_t dropped_rows = 0;  // of all
  int64_t row_bytes = 0;
  int64_t total_bytes = 0;
  double skew = 0;  // of the last
  double total_skew = 0;
  int32_t stages = 0;      // of the last plan
  int32_t scheduler = -1;  // that made it
  Times planning;
  Times exchange;
  std::vector<int64_t> traffic;  // of the last: rows that rank i sends to rank j, as they travelled

  bool empty() const { return exchanges + failures == 0; }
};

// The largest number of rows that a rank of `ranks` sends or receives, over the mean; 1 where there are none.
double SkewOf(const std::vector<int64_t>& traffic, int32_t ranks);

struct SiteReport {
  std::shared_ptr<const CallSite> site;
  SiteKind kind;
  bool active = false;  // its executable is still there
  Statistics statistics;
};

// What is collected of one call site: nothing so far, or since the last Reset, if its statistics are empty.
struct Record {
  std::mutex mutex;
  SiteReport report;  // `active` is guarded by the mutex of all records
};

// All records of the process, and whether statistics are collected at all.
class Records {
 public:
  // So many records of call sites whose executables are gone are kept: the newest.
  static constexpr size_t kMaxEnded = 256;

  static Records& Get() { return ProcessState<Records>(); }

  static bool collecting() { return collecting_.load(std::memory_order_relaxed); }
  static void Collect(bool on) { collecting_.store(on, std::memory_order_relaxed); }

  std::shared_ptr<Record> Open(std::shared_ptr<const CallSite> site, SiteKind kind);
  void Close(const std::shared_ptr<Record>& record);
  // Reports the call sites that have done something since the last Reset, in order of creation.
  std::vector<SiteReport> Report() const;
  void Reset();

 private:
  inline static std::atomic<bool> collecting_{false};

  void DropEnded(size_t kept);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Record>> records_;  // in order of creation
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_STATISTICS_H_
