// Seconds that a plan takes, by a model. The only floating point in the planner: times inform, they decide nothing.
//
// Staged plans run as if all devices met at a barrier between steps. Step u runs the balance that feeds stage u, the
// scale-out of stage u - 1 and the redistribution that drains stage u - 2. It lasts as long as the slower of the two
// fabrics: the busiest device's rows (sent or received, whichever is more: links are full duplex) at its bandwidth, and
// one start-up when the step uses the fabric at all. Rows that go straight to a device of the same server fill the
// time that scale-up would idle, and what does not fit is added at the end.
//
// A plan that runs at once has no steps: the busiest device's NIC, with a start-up for each transfer it sends or
// receives, whichever is more, beside the busiest device's scale-up likewise.
//
// Rows that stay on their device cost nothing.
#ifndef FASTJAX_PLANNER_COST_H_
#define FASTJAX_PLANNER_COST_H_

#include <cstdint>
#include <vector>

#include "planner/schedule.h"
#include "planner/topology.h"
#include "planner/transfer.h"

namespace fastjax::planner {

// The larger of: rows that leave or enter a server, over all its NICs; rows that leave or enter a device, over all its
// links. No schedule is faster.
double LowerBoundSeconds(const Topology& topology, int64_t row_bytes, const int64_t* traffic);

// Keeps its accumulators, so that it does not allocate twice.
class CostModel {
 public:
  CostModel(const Topology& topology, int64_t row_bytes);

  // Transfers as Planner::AppendTransfers lists them.
  double Seconds(Execution execution, TransferRange transfers);

 private:
  struct Load {
    int64_t sent_rows = 0;
    int64_t received_rows = 0;
    int64_t sends = 0;
    int64_t receives = 0;
  };
  // What devices do on one fabric in one step.
  struct Step {
    std::vector<Load> devices;
    bool used = false;
  };

  void Clear(Step* step);
  void Add(const Transfer& transfer, Step* step);
  double Busiest(const Step& step, double bandwidth) const;
  double BusiestWithStartups(const Step& step, double bandwidth, double latency) const;
  double AtOnce(TransferRange transfers);
  double Staged(TransferRange transfers);
  void Finish(int64_t step);

  Topology topology_;
  double row_bytes_;
  double scale_up_latency_;
  double scale_out_latency_;
  Step local_;
  Step scale_up_[3];  // steps u, u + 1 and u + 2 are open at a time
  Step scale_out_[3];
  double seconds_ = 0;
  double idle_scale_up_ = 0;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_COST_H_
