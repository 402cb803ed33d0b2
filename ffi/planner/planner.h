// Turns one traffic matrix into a schedule. Standard library only; integers only; no hash order: the same matrix,
// topology and scheduler give the same plan, bit for bit, on every host.
#ifndef FASTJAX_PLANNER_PLANNER_H_
#define FASTJAX_PLANNER_PLANNER_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "planner/topology.h"
#include "planner/transfer.h"

namespace fastjax::planner {

// Numbered by their places in the list; the numbers stand in stage tables and in hashes.
enum class Scheduler : int32_t {
#define FASTJAX_SCHEDULER(Name) k##Name,
#include "planner/schedulers.inc"
#undef FASTJAX_SCHEDULER
};

// What plans where there is nothing to decide, since nothing leaves its server. No table is smaller than its.
inline constexpr Scheduler kFallback = Scheduler::kDirect;

// In place of a device's number.
inline constexpr int32_t kEveryDevice = -1;

struct MatchingList;
class Schedule;

// The matchings that stages were cut from; null for schedules without.
struct Matched {
  const MatchingList* matchings = nullptr;
  const int64_t* units = nullptr;  // by pair of servers: what they cover
  int64_t startup = 0;             // what a matching costs, in units
};

// One of the schedulers that kAuto chose between. What could not have been the cheapest was not planned: its time is
// then what it would have taken at least.
struct Choice {
  Scheduler scheduler;
  bool planned;
  int32_t stages;
  double exchange_seconds;
  double planning_seconds;
};

int32_t NumSchedulers();
std::string_view NameOf(Scheduler scheduler);

// One schedule for one matrix. Work is done when it is asked for: `Plan` decides the stages, and what only some
// devices need (the balance of one server pair) is computed the first time a device that takes part is listed.
// Reuse one Planner for many matrices: once warm it does not allocate.
class Planner {
 public:
  Planner(const Topology& topology, Scheduler scheduler, int64_t row_bytes);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // traffic is row-major devices x devices, rows that device i sends to device j, none negative. It is not copied: it
  // must stay until the next call of Plan, or the last of any other. A matrix equal to the last one is not planned
  // again.
  void Plan(const int64_t* traffic) { Plan(traffic, HashWith(traffic)); }
  // Does the same; `hash` is that with the traffic, asked for before.
  void Plan(const int64_t* traffic, uint64_t hash);
  // Takes these matchings, where the scheduler uses any and they cover the traffic. They are one-to-one, and weights
  // are positive. The plan depends on them, and so does its hash.
  void PlanWith(const int64_t* traffic, const MatchingList& matchings);

  // What tells a plan of this matrix from plans of others, and of other settings.
  uint64_t HashWith(const int64_t* traffic) const;
  // Whether that is the last plan made.
  bool planned(uint64_t hash) const { return traffic_ != nullptr && hash_ == hash; }

  const Topology& topology() const { return topology_; }
  Scheduler scheduler() const { return scheduler_; }
  // Returns the scheduler, or the one that kAuto chose.
  Scheduler chosen() const;
  const int64_t* traffic() const { return traffic_; }
  int32_t num_stages() const;
  Matched matched() const;
  const std::vector<Choice>* choices() const;
  // Returns the hash of topology, scheduler, row bytes and traffic.
  uint64_t hash() const { return hash_; }
  // Whether every block has fewer than 2^31 rows, and whether every device's staging buffer does, too: of the whole
  // exchange, so that every device gets the same answer. Tables and exchanges need it.
  bool blocks_fit_int32() const { return blocks_fit_int32_; }
  bool fits_int32() const { return blocks_fit_int32_ && staging_fits_int32_; }

  // Returns the transfers of a device, or for kEveryDevice all, in an order that can be executed as it stands; valid
  // until the next call of this or of Plan.
  TransferRange DeviceTransfers(int32_t device);
  // Rows of staging buffer that `device` needs.
  int64_t StagingRows(int32_t device) const;

  // Seconds; docs/design/cost_model.md.
  double LowerBound() const;
  double PredictedTime();  // planning included
  double PlanningTime() const;

 private:
  void MakePlan(const int64_t* traffic, uint64_t hash, const MatchingList* given);

  Topology topology_;
  Scheduler scheduler_;
  int64_t row_bytes_;
  uint64_t settings_hash_;
  const int64_t* traffic_ = nullptr;
  uint64_t hash_ = 0;
  bool blocks_fit_int32_ = true;
  bool staging_fits_int32_ = true;
  std::unique_ptr<Schedule> schedule_;
  TransferBuffer buffer_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_PLANNER_H_
