// Declares LoopbackFabric, with which one GPU executes all ranks of a plan. Kernels and stages are real, and a kernel
// moves the messages.
#ifndef FASTJAX_BACKENDS_GPU_LOOPBACK_H_
#define FASTJAX_BACKENDS_GPU_LOOPBACK_H_

#include <cstdint>
#include <memory>

#include "backends/gpu/device/layout.h"

namespace fastjax::gpu {

// Servers of so many devices are domains.
class LoopbackFabric final : public Fabric {
 public:
  explicit LoopbackFabric(int32_t devices_per_server) : devices_per_server_(devices_per_server) {}
  Status FindDomains(const CallSite& site, Layout* layout) override;
  // There is none: all ranks are on one stream.
  Status ChannelOf(const CallSite& site, int32_t group, const Layout& layout,
                   std::shared_ptr<Channel>* channel) override;

 private:
  const int32_t devices_per_server_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_LOOPBACK_H_
