// Processes that share the memory of their emulated GPUs, all of them in this one.
#ifndef FASTJAX_TESTS_CPP_BACKENDS_GPU_IPC_IPC_RIG_H_
#define FASTJAX_TESTS_CPP_BACKENDS_GPU_IPC_IPC_RIG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "kernels/driver.h"
#include "support/exchange_rig.h"
#include "support/gpu/gpu_rig.h"
#include "support/job_rig.h"

namespace fastjax::test {

// What a process has.
struct ProcessSetup {
  uint64_t host = 1;
  bool shares = true;
  const kernels::Driver* driver = fastjax_gpu_driver();
};

// A job of so many processes, and one call site.
struct IpcJob {
  IpcJob(const std::shared_ptr<CallSite>& site, const RigOptions& options, int32_t count, uint64_t seed,
         const std::function<ProcessSetup(int32_t process)>& setup = nullptr);
  // Another call site of the same processes; its memory is shared as well.
  std::unique_ptr<StreamedExchange> Open(const std::shared_ptr<CallSite>& site, const RigOptions& options) const;

  std::shared_ptr<gpu::Gpu> gpu;  // the rig's
  std::unique_ptr<Processes> processes;
  std::unique_ptr<StreamedExchange> exchange;
};

// One device a process, one process a device: all on direct ways, so that everybody waits for everybody.
struct Ring {
  Ring(int32_t devices, int64_t timeout_ms, uint64_t seed,
       const std::function<ProcessSetup(int32_t process)>& setup = nullptr);

  // Of all devices at once.
  Outcomes Run();
  void CheckWorks();
  // Runs until it works, so often at most; returns what was said meanwhile.
  std::vector<std::string> RunUntilItWorks(int attempts);

  std::mt19937_64 random;
  RigOptions options;
  std::shared_ptr<CallSite> site;
  std::unique_ptr<IpcJob> job;
  std::unique_ptr<Rig> rig;
  int64_t run_id = 0;
};

// Files of this process's pages, which have one until everybody has opened them.
int64_t BoardFiles();

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_BACKENDS_GPU_IPC_IPC_RIG_H_
