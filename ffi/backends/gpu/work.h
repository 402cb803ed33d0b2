// Declares Work: one exchange of GPUs, from its devices' arguments to what is on their streams.
#ifndef FASTJAX_BACKENDS_GPU_WORK_H_
#define FASTJAX_BACKENDS_GPU_WORK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/launch_schedule.h"
#include "backends/gpu/launcher.h"
#include "execution/prepared.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {

// What the groups of a call site have for messages. One for all of its works, since what failed in one exchange is told
// to the group's next, whichever work that comes by.
class Channels {
 public:
  struct OfGroup {
    std::mutex mutex;  // held from when the channel is looked for until an exchange has been put on streams
    std::shared_ptr<Channel> channel;
  };

  OfGroup& Of(int32_t group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return channels_[group];
  }

 private:
  std::mutex mutex_;
  std::map<int32_t, OfGroup> channels_;
};

// Reused from exchange to exchange.
class Work {
 public:
  Work(Gpu* gpu, Fabric* fabric, Channels* channels)
      : gpu_(gpu), fabric_(fabric), channels_(channels), launcher_(gpu) {}

  // Checks and plans; `args` by position must stay as they are until Launch. `ranks`: of this process's devices.
  // `found_by_all` says, of a mistake, whether every process finds the same.
  Status Prepare(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                 const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* found_by_all,
                 fastjax::Launch* launch);
  // Puts all of it on the callers' streams.
  Status Launch(const CallSite& site, int32_t group);
  LaunchSummary summary() const { return prepared_.summary(); }

 private:
  bool MayHaveMessages(const CallSite& site);
  std::vector<std::unique_lock<std::mutex>> LockDevices();

  Gpu* const gpu_;
  Fabric* const fabric_;
  Channels* const channels_;
  Prepared prepared_;
  Layout layout_;
  LaunchSchedule schedule_;
  Launcher launcher_;
  std::vector<int32_t> devices_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_WORK_H_
