// What the fabric charges, in integers: docs/design/cost_model.md.
#ifndef FASTJAX_PLANNER_PRICING_H_
#define FASTJAX_PLANNER_PRICING_H_

#include <cstdint>

#include "planner/rate.h"
#include "planner/topology.h"

namespace fastjax::planner {

struct Pricing {
  Pricing(const Topology& topology, int64_t row_bytes)
      : scale_up(row_bytes, topology.scale_up_bandwidth),
        scale_out(row_bytes, topology.fastest_nic()),
        scale_up_latency(FromNanoseconds(topology.scale_up_latency_ns)),
        scale_out_latency(FromNanoseconds(topology.scale_out_latency_ns)),
        transfer_overhead(FromNanoseconds(topology.transfer_overhead_ns)) {}

  // A start-up of a scale-out stage, in rows of the fastest NIC.
  int64_t startup_rows() const { return scale_out.Rows(scale_out_latency); }

  Rate scale_up;
  Rate scale_out;  // of the fastest NIC
  Picoseconds scale_up_latency;
  Picoseconds scale_out_latency;
  Picoseconds transfer_overhead;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_PRICING_H_
