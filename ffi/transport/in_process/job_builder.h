// Turns the plans of a group into copies.
#ifndef FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_
#define FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_

#include <vector>

#include "transport/execution/device_plan.h"
#include "transport/execution/lowering.h"
#include "transport/execution/placement.h"
#include "transport/in_process/copy_pool.h"
#include "transport/traffic.h"

namespace fastjax::transport::in_process {

// Everything one exchange needs while it runs; reused by later exchanges of the same call site.
class JobBuilder {
 public:
  // Fills job() with the copies of every device, a step of the job for each pipeline step. `plans` are those of all
  // ranks and have been checked against the traffic.
  Status Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const execution::DevicePlans& plans,
               const GroupTraffic& traffic);

  CopyJob* job() { return &job_; }

  // Gives the staging memory back.
  void Release() { placement_.Release(); }

 private:
  CopyJob job_;
  execution::Placement placement_;
  execution::Reach reach_;  // All devices are here and share one memory.
  execution::Lowering lowering_;
};

}  // namespace fastjax::transport::in_process

#endif  // FASTJAX_TRANSPORT_IN_PROCESS_JOB_BUILDER_H_
