// Declares the backend for GPUs of several processes. The processes meet and agree by messages, as on CPUs. Rows go
// through the fabric, or by kernels where processes of one host share memory.
#ifndef FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_
#define FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_

#include <memory>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/ipc/memory.h"
#include "exchange/backend.h"
#include "rendezvous/process_group.h"

namespace fastjax::gpu {

class GpuProcessBackend final : public Backend {
 public:
  // `memory`: what devices of several processes share; null where they do not.
  GpuProcessBackend(std::shared_ptr<Gpu> gpu, std::shared_ptr<Fabric> fabric,
                    std::shared_ptr<ProcessGroup> process_group, std::shared_ptr<ipc::Memory> memory = nullptr)
      : gpu_(std::move(gpu)),
        fabric_(std::move(fabric)),
        process_group_(std::move(process_group)),
        memory_(std::move(memory)) {}

  // Counts and tables are where those of GpuBackend are.
  std::unique_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  std::unique_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<ProcessGroup> process_group_;
  const std::shared_ptr<ipc::Memory> memory_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_
