// Declares JobBuilder, which turns the plans of a group into the copies of one job.
#ifndef FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_
#define FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_

#include <cstdint>
#include <vector>

#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "execution/numbering.h"
#include "execution/pipeline.h"
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
  bool Take(const DevicePlan& plan, int32_t rank, const Pipeline& pipeline);

  CopyJob job_;
  Placement placement_;
  std::vector<CopyJob::OfStep> copies_;  // in the order of the plans
  Numbering pipeline_steps_;             // those that have copies
};

}  // namespace fastjax::memory

#endif  // FASTJAX_BACKENDS_MEMORY_JOB_BUILDER_H_
