// One exchange as all of its processes lower it, with devices dealt to processes and memory domains at random.
#ifndef FASTJAX_TESTS_CPP_EXECUTION_LOWERING_RIG_H_
#define FASTJAX_TESTS_CPP_EXECUTION_LOWERING_RIG_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "execution/lowering.h"
#include "execution/placement.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/layout.h"
#include "support/traffic.h"
#include "support/transport_support.h"

namespace fastjax::test {

// Which devices reach each other's memory.
enum class Domains : uint8_t {
  kProcess,  // those of one process
  kDevice,   // none
  kServer,   // those of one server, whichever process they belong to
};

// One exchange, as every process sees it.
struct Setting {
  Setting(const planner::Topology& topology, planner::Scheduler scheduler, const Matrix& rows, bool reverse,
          uint64_t seed, int64_t bytes = 4)
      : random(seed), site(MakeSite(1, topology.devices(), 1000, &random)) {
    layout = MakeLayout(*site, rows, 2, false, &random);
    tables = MakeTables(*site, topology, scheduler, rows);
    for (const Metadata& metadata : layout) {
      args.push_back(metadata.Args(reverse));
      args.back().row_bytes = bytes;
    }
    CHECK_EQ(traffic.Load(*site, 0, args, reverse).message, "");
    backwards = reverse;
    row_bytes = bytes;
  }

  // Deals devices to processes, and says which memory they reach.
  void Deal(int32_t count, Domains domains, int32_t per_server) {
    processes = count;
    process_of.clear();
    reaches.assign(static_cast<size_t>(count), Reach{});
    for (int32_t rank = 0; rank < site->group_size; ++rank) {
      process_of.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(count)));
      const int32_t domain = domains == Domains::kProcess  ? process_of.back()
                             : domains == Domains::kDevice ? rank
                                                           : rank / per_server;
      for (int32_t process = 0; process < count; ++process) {
        Reach& reach = reaches[static_cast<size_t>(process)];
        reach.here.push_back(process_of.back() == process ? 1 : 0);
        reach.domain_of.push_back(domain);
      }
    }
  }

  DevicePlans PlansOf(int32_t process) const {
    std::vector<const int32_t*> here(static_cast<size_t>(site->group_size), nullptr);
    for (int32_t p = 0; p < site->group_size; ++p) {
      const auto rank = static_cast<size_t>(site->rank_of[p]);
      if (process_of[rank] == process) here[rank] = tables[static_cast<size_t>(p)].data();
    }
    DevicePlans plans;
    DecodeTables(here, backwards, &plans);
    return plans;
  }

  std::mt19937_64 random;
  std::shared_ptr<CallSite> site;
  Layout layout;
  Tables tables;
  std::vector<ExchangeArgs> args;
  GroupTraffic traffic;
  bool backwards = false;
  int64_t row_bytes = 0;
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
