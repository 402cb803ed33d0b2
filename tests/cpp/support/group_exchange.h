// One exchange of one group, as what lies below a backend takes it: no buffers, and nobody who meets.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GROUP_EXCHANGE_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GROUP_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "exchange/group_traffic.h"
#include "exchange/operation.h"
#include "execution/device_plan.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/device_plans.h"
#include "support/layout.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {

struct GroupExchange {
  GroupExchange(int32_t devices, uint64_t seed) : random(seed), site(MakeSite(1, devices, 1000, &random)) {}

  // Strews rows over operands and outputs, and plans them.
  void Plan(const planner::Topology& topology, planner::Scheduler scheduler, const Matrix& rows, int32_t per_peer,
            bool overlap = false) {
    layout = MakeLayout(*site, rows, per_peer, overlap, &random);
    tables = MakeTables(*site, topology, scheduler, rows);
  }

  // What devices bring, for one direction.
  void Bring(bool reverse, int64_t row_bytes) {
    args.clear();
    for (const Metadata& metadata : layout) {
      args.push_back(metadata.Args(reverse));
      args.back().row_bytes = row_bytes;
    }
    CHECK_EQ(traffic.Load(*site, 0, args, reverse).message, "");
  }

  // The plans of a process's devices, by the processes of the call site.
  void Decode(int32_t process, bool backwards, DevicePlans* plans) const {
    std::vector<const int32_t*> here(static_cast<size_t>(site->group_size), nullptr);
    for (int32_t p = 0; p < site->group_size; ++p) {
      if (site->process_of[site->partition(0, p)] == process) here[site->rank_of[p]] = tables[p].data();
    }
    ViewTables(here, backwards, plans);
  }

  std::mt19937_64 random;
  std::shared_ptr<CallSite> site;
  Layout layout;
  Tables tables;
  std::vector<ExchangeArgs> args;  // by position
  GroupTraffic traffic;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GROUP_EXCHANGE_H_
