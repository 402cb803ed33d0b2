// Which backend moves the rows of a call site whose devices are GPUs.
#ifndef FASTJAX_BACKENDS_GPU_REGISTRY_H_
#define FASTJAX_BACKENDS_GPU_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "backends/gpu/device/gpu.h"
#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax {

// The GPUs of a platform, and what exchanges between them.
struct PlatformBackend {
  std::shared_ptr<gpu::Gpu> gpu;
  std::shared_ptr<Backend> backend;
};

// Finds the backend of a platform: "cuda", "rocm", or "cpu", whose GPUs are emulated. Fails where there is none. Where
// one device executes all ranks, `devices_per_server` is how many of them are a server; else 0.
Status FindGpuBackend(const std::string& platform, const CallSite& site, int32_t devices_per_server,
                      PlatformBackend* found);

}  // namespace fastjax

#endif  // FASTJAX_BACKENDS_GPU_REGISTRY_H_
