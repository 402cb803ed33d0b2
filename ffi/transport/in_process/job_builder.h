// Turns the stage tables of a group into copies.
#ifndef FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_
#define FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_

#include <cstdint>
#include <vector>

#include "transport/execution/placement.h"
#include "transport/in_process/copy_pool.h"
#include "transport/traffic.h"

namespace fastjax::transport::in_process {

// Everything one exchange needs while it runs; reused by later exchanges of the same call site.
class JobBuilder {
 public:
  // Fills job() with the copies of every device, in steps: step t holds the balance of stage t, the scale-out of
  // stage t - 1 and the redistribution of stage t - 2, all of which are independent of each other. With `backwards`
  // the tables are read as those of the transposed traffic. The plan has been checked against the traffic.
  // `tables` by rank.
  Status Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const std::vector<const int32_t*>& tables,
               const GroupTraffic& traffic, bool backwards);

  CopyJob* job() { return &job_; }

  // Gives the staging memory back.
  void Release() { placement_.Release(); }

 private:
  struct Step {
    int32_t step;
    execution::CopyOp op;
  };

  CopyJob job_;
  execution::Placement placement_;
  std::vector<Step> ops_;
  std::vector<Step> sorted_;
  std::vector<size_t> step_begin_;
};

}  // namespace fastjax::transport::in_process

#endif  // FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_
