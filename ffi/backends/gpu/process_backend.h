// Declares the backend for GPUs of several processes. The processes meet by messages, as on CPUs; rows go through the
// fabric.
#ifndef FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_
#define FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_

#include <memory>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "exchange/backend.h"
#include "rendezvous/process_group.h"

namespace fastjax::gpu {

class GpuProcessBackend final : public Backend {
 public:
  GpuProcessBackend(std::shared_ptr<Gpu> gpu, std::shared_ptr<Fabric> fabric,
                    std::shared_ptr<ProcessGroup> process_group)
      : gpu_(std::move(gpu)), fabric_(std::move(fabric)), process_group_(std::move(process_group)) {}

  // Counts and tables are where those of GpuBackend are.
  std::shared_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  std::shared_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<ProcessGroup> process_group_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_PROCESS_BACKEND_H_
