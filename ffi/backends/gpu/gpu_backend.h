// Declares the backends for GPUs, of one process and of several.
#ifndef FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
#define FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_

#include <memory>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/nccl/fabric.h"
#include "exchange/backend.h"
#include "rendezvous/process_group.h"

namespace fastjax::gpu {

// Kernels write into each other's memory where the hardware allows that; elsewhere rows go as messages.
class GpuBackend final : public Backend {
 public:
  GpuBackend(std::shared_ptr<Gpu> gpu, std::shared_ptr<Fabric> fabric)
      : gpu_(std::move(gpu)), fabric_(std::move(fabric)) {}

  // Counts and tables are in pinned memory of the host.
  std::shared_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  // Offsets and sizes, and tables, are in pinned memory of the host; rows are in that of the caller's device. A
  // completion says that all has been put on streams, not that it has happened.
  std::shared_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Fabric> fabric_;
};

// The processes meet by messages, as on CPUs; rows go through the fabric.
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

// How the processes of that fabric share a communicator's id: by messages.
nccl::ShareId MakeShareId(std::shared_ptr<ProcessGroup> process_group);

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
