// Declares the backend for GPUs of one process. Its kernels write into each other's memory where the hardware allows
// that; elsewhere rows go as messages.
#ifndef FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
#define FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_

#include <memory>

#include "backends/gpu/device/channel.h"
#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "exchange/backend.h"

namespace fastjax::gpu {

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

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
