// Which backend moves a call site's rows.
#ifndef FASTJAX_BACKENDS_REGISTRY_H_
#define FASTJAX_BACKENDS_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/gpu/gpu_backend.h"
#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "rendezvous/counts.h"
#include "rendezvous/process_group.h"

namespace fastjax {

// What a call site is opened with. On CPUs the backend is that of this process's memory, or that of the network where
// devices of other processes take part.
struct Backend {
  std::shared_ptr<ProcessGroup> process_group;  // null: this process has all devices
  gpu::Gpus gpus;                               // none: the devices are CPUs

  std::shared_ptr<Counts> OpenCounts(const std::shared_ptr<const CallSite>& site, PlanFunction plan) const {
    return fastjax::OpenCounts(process_group, site, std::move(plan));
  }
  std::shared_ptr<Exchange> OpenExchange(const std::shared_ptr<const CallSite>& site, ExchangeOptions options) const;
};

// Finds the backend of programs on CPUs. Fails where no network has been opened.
Status FindBackend(const CallSite& site, Backend* backend);

// Finds the backend of a platform: "cuda", "rocm", or "cpu", whose GPUs are emulated. Fails where there is none. Where
// one device executes all ranks, `devices_per_server` is how many of them are a server; else 0.
Status FindGpuBackend(const std::string& platform, const CallSite& site, int32_t devices_per_server, Backend* backend);

// Says from where XLA counts the launches of the executable of a module that was made last. Nothing if no call site of
// this process waits for it.
void CountLaunchesFrom(const std::string& module, uint32_t start);

}  // namespace fastjax

#endif  // FASTJAX_BACKENDS_REGISTRY_H_
