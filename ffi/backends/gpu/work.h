// Declares Work: one exchange of GPUs, from its devices' arguments to what is on their streams.
#ifndef FASTJAX_BACKENDS_GPU_WORK_H_
#define FASTJAX_BACKENDS_GPU_WORK_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "backends/gpu/device/layout.h"
#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/launch_schedule.h"
#include "backends/gpu/launcher.h"
#include "backends/gpu/nccl/fabric.h"
#include "execution/prepared.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {

// The channels of a call site's groups, for all of its works.
class Channels {
 public:
  nccl::Channel& Of(const CallSite& site, int32_t group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return channels_.try_emplace(group, site, group).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<int32_t, nccl::Channel> channels_;
};

// Reused from exchange to exchange.
class Work {
 public:
  // Both must outlive it.
  Work(const Gpus& gpus, Channels* channels) : gpus_(gpus), channels_(channels), launcher_(gpus.gpu.get()) {}

  // Checks, plans, and puts all of it on the callers' streams. `args` is by position. `ranks`: of this process's
  // devices. `found_by_all` says, of a mistake, whether every process finds the same.
  Status PrepareAndLaunch(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                          const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* found_by_all,
                          fastjax::Launch* launch);
  LaunchSummary summary() const { return prepared_.summary(); }

 private:
  Status Launch(const CallSite& site, int32_t group);
  bool MayHaveMessages(const CallSite& site);
  std::vector<std::unique_lock<std::mutex>> LockDevices();

  const Gpus& gpus_;
  Channels* const channels_;
  Prepared prepared_;
  Layout layout_;
  LaunchSchedule schedule_;
  Launcher launcher_;
  std::vector<int32_t> devices_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_WORK_H_
