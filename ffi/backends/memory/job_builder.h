// Declares JobBuilder, which turns the plans of a group into the copies of one job.
#ifndef FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_
#define FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_

#include <vector>

#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "execution/lowering.h"
#include "execution/placement.h"
#include "runtime/copy_pool.h"

namespace fastjax::memory {

// Everything one exchange needs while it runs; reused by later exchanges of the same call site.
class JobBuilder {
 public:
  // Fills job() with the copies of every device, a step of the job for each pipeline step. `plans` are those of all
  // ranks and have been checked against the traffic.
  Status Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const DevicePlans& plans,
               const GroupTraffic& traffic);

  CopyJob* job() { return &job_; }

  // Gives the staging memory back.
  void Release() { placement_.Release(); }

 private:
  CopyJob job_;
  Placement placement_;
  Reach reach_;  // All devices are here and share one memory.
  Lowering lowering_;
};

}  // namespace fastjax::memory

#endif  // FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_
