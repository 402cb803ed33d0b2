// One exchange as all of its processes lower it, with devices dealt to processes and memory domains at random.
#ifndef FASTJAX_TESTS_CPP_EXECUTION_LOWERING_RIG_H_
#define FASTJAX_TESTS_CPP_EXECUTION_LOWERING_RIG_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "execution/device_plan.h"
#include "execution/lowering.h"
#include "execution/placement.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/group_exchange.h"
#include "support/traffic.h"

namespace fastjax::test {

// Which devices reach each other's memory.
enum class Domains : uint8_t {
  kProcess,  // those of one process
  kDevice,   // none
  kServer,   // those of one server that one process has
};

// One exchange, as every process sees it.
struct Setting : GroupExchange {
  Setting(const planner::Topology& topology, planner::Scheduler scheduler, const Matrix& rows, bool reverse,
          uint64_t seed, int64_t bytes = 4)
      : GroupExchange(topology.devices(), seed), backwards(reverse), row_bytes(bytes) {
    Plan(topology, scheduler, rows, 2);
    Bring(reverse, bytes);
  }

  // Deals devices to processes, and says which memory they reach.
  void Deal(int32_t count, Domains domains, int32_t per_server) {
    processes = count;
    process_of.clear();
    site->process_of.resize(static_cast<size_t>(site->group_size));
    reaches.assign(static_cast<size_t>(count), Reach{});
    for (int32_t rank = 0; rank < site->group_size; ++rank) {
      process_of.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(count)));
      site->process_of[site->partition(0, site->position_at[rank])] = process_of.back();
      const int32_t domain = domains == Domains::kProcess  ? process_of.back()
                             : domains == Domains::kDevice ? rank
                                                           : rank / per_server * count + process_of.back();
      for (int32_t process = 0; process < count; ++process) {
        Reach& reach = reaches[static_cast<size_t>(process)];
        reach.here.push_back(process_of.back() == process ? 1 : 0);
        reach.domain_of.push_back(domain);
      }
    }
  }

  DevicePlans PlansOf(int32_t process) const {
    DevicePlans plans;
    Decode(process, backwards, &plans);
    return plans;
  }

  std::vector<int32_t>& TableOf(int32_t rank) {
    return tables[static_cast<size_t>(site->position_at[static_cast<size_t>(rank)])];
  }

  bool backwards;
  int64_t row_bytes;
  int32_t processes = 0;
  std::vector<int32_t> process_of;  // by rank
  std::vector<Reach> reaches;       // by process
};

// A process's part of an exchange.
struct Side {
  explicit Side(const DevicePlans& own) : plans(own) {}
  ~Side() { placement.Release(); }

  Status Lower(const Setting& setting, int32_t process) {
    placement.Begin(*setting.site, setting.args, setting.row_bytes, setting.traffic);
    Status status = placement.TakeStaging(plans);
    if (!status.ok()) return status;
    status = lowering.Lower(setting.reaches[static_cast<size_t>(process)], plans, placement);
    if (status.ok()) lowering.LinkGates();
    return status;
  }

  DevicePlans plans;
  Placement placement;
  Lowering lowering;
};

using Sides = std::vector<std::unique_ptr<Side>>;

inline Sides LowerAll(const Setting& setting) {
  Sides sides;
  for (int32_t process = 0; process < setting.processes; ++process) {
    sides.push_back(std::make_unique<Side>(setting.PlansOf(process)));
    CHECK_EQ(sides.back()->Lower(setting, process).message, "");
  }
  return sides;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_EXECUTION_LOWERING_RIG_H_
