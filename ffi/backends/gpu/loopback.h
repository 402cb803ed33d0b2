// Declares LoopbackFabric, with which one GPU executes all ranks of a plan. Kernels and stages are real, and a kernel
// moves the messages.
#ifndef FASTJAX_BACKENDS_GPU_LOOPBACK_H_
#define FASTJAX_BACKENDS_GPU_LOOPBACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/gpu/device/layout.h"

namespace fastjax::gpu {

// Servers of so many devices are domains.
class LoopbackFabric final : public Fabric {
 public:
  explicit LoopbackFabric(int32_t devices_per_server) : devices_per_server_(devices_per_server) {}
  Status FindDomains(const CallSite& /*site*/, Layout* layout) override {
    for (size_t rank = 0; rank < layout->domain_of.size(); ++rank) {
      layout->domain_of[rank] = static_cast<int32_t>(rank) / devices_per_server_;
    }
    return Status::Ok();
  }
  // There is none: all ranks are on one stream.
  Status ChannelOf(const CallSite& site, int32_t /*group*/, const Layout& /*layout*/,
                   std::shared_ptr<Channel>* channel) override {
    *channel = nullptr;
    return Status::Internal(site.Prefix() + "ranks that one device executes must be on one stream.");
  }

 private:
  const int32_t devices_per_server_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_LOOPBACK_H_
