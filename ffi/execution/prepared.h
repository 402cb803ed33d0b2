// Declares Prepared, which every backend makes of an exchange before rows move. It holds the checked traffic, and the
// plans of the local devices.
#ifndef FASTJAX_EXECUTION_PREPARED_H_
#define FASTJAX_EXECUTION_PREPARED_H_

#include <cstdint>
#include <vector>

#include "exchange/group_traffic.h"
#include "exchange/operation.h"
#include "execution/device_plan.h"
#include "runtime/recorder.h"

namespace fastjax {

// Later exchanges reuse it without allocating.
class Prepared {
 public:
  // `once`: of an exchange that plans itself, `plans` list each transfer once, all in the plan of the first rank, and
  // not at both ends. For backends that have all ranks and need not know which device executes what.
  explicit Prepared(bool once = false) : once_(once) {}

  // Checks `args`, by position, and reads the plans of `ranks` from the tables in `args`, or plans for them if the
  // exchange plans itself. `found_by_all` says whether every process finds the same mistake.
  Status Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
              const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* found_by_all, Launch* launch);

  GroupTraffic& traffic() { return traffic_; }
  const DevicePlans& plans() const { return plans_; }
  // Calls visit(transfer) for every transfer once, until visit returns false; returns whether it never did. All ranks
  // must have been loaded.
  template <typename Visit>
  bool ForEachTransfer(const ExchangeOptions& options, Visit visit) const {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      const bool all = plans_[rank].ForEachTransfer([&](const planner::Transfer& transfer) {
        // In tables, a transfer stands at both its ends; the sender's counts.
        return (!options.plan && transfer.src != static_cast<int32_t>(rank)) || visit(transfer);
      });
      if (!all) return false;
    }
    return true;
  }
  // Returns what statistics are made of. To be called after a load.
  LaunchSummary summary() const;

 private:
  Status Plan(const ExchangeOptions& options, const std::vector<int32_t>& ranks, Launch* launch);

  GroupTraffic traffic_;
  DevicePlans plans_;
  int64_t row_bytes_ = 0;
  const bool once_;
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_PREPARED_H_
