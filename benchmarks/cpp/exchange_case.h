// An exchange without XLA: what its devices bring, for programs that time what the host does before rows move.
#ifndef FASTJAX_BENCHMARKS_CPP_EXCHANGE_CASE_H_
#define FASTJAX_BENCHMARKS_CPP_EXCHANGE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "planner/planner.h"

namespace fastjax::bench {

// Devices of one server are those of one process. Rows have one byte, and are planned as
// if they had kPlannedRowBytes.
class ExchangeCase {
 public:
  static constexpr int64_t kPlannedRowBytes = 4096;

  // `traffic` is row-major, by rank, which is also the position.
  ExchangeCase(const planner::Topology& topology, planner::Scheduler scheduler, const std::vector<int64_t>& traffic);

  const CallSite& site() const { return site_; }
  const std::vector<ExchangeArgs>& args() const { return args_; }  // with the stage table of every device
  const planner::Topology& topology() const { return topology_; }
  // The plan that the tables are of, for an exchange that plans itself: made anew every time, or kept.
  SliceFunction Slices(bool anew) const;

 private:
  struct Device {
    std::vector<int32_t> input_offsets;
    std::vector<int32_t> send_sizes;
    std::vector<int32_t> output_offsets;
    std::vector<int32_t> recv_sizes;
    std::vector<int32_t> table;
  };

  void MakeSite();
  void MakeDevices(const std::vector<int64_t>& traffic);
  void MakeTables(const std::vector<int64_t>& traffic);

  planner::Topology topology_;
  planner::Scheduler scheduler_;
  CallSite site_;
  std::vector<Device> devices_;
  std::vector<std::byte> rows_;  // every device's operand and output: nothing is moved
  std::vector<ExchangeArgs> args_;
};

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_EXCHANGE_CASE_H_
