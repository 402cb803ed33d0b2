// All ranks of a plan, played on one GPU: kernels, stages and messages are real, only the network is memory.
#ifndef FASTJAX_TRANSPORT_GPU_LOOPBACK_H_
#define FASTJAX_TRANSPORT_GPU_LOOPBACK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/gpu/gpu.h"
#include "transport/gpu/layout.h"

namespace fastjax::transport::gpu {

// Servers of so many devices are domains.
class LoopbackFabric final : public Fabric {
 public:
  LoopbackFabric(Gpu* gpu, int32_t devices_per_server)
      : devices_per_server_(devices_per_server), channel_(std::make_shared<Loop>(gpu)) {}
  Status FindDomains(const CallSite& site, Layout* layout) override;
  Status ChannelOf(const CallSite& site, int32_t group, const Layout& layout,
                   std::shared_ptr<Channel>* channel) override;

 private:
  class Loop final : public Channel {
   public:
    explicit Loop(Gpu* gpu) : gpu_(gpu) {}
    Status Move(const Message* messages, int64_t count, const std::vector<kernels::Stream>& streams) override;

   private:
    Gpu* const gpu_;
  };

  const int32_t devices_per_server_;
  const std::shared_ptr<Loop> channel_;
};

}  // namespace fastjax::transport::gpu

#endif  // FASTJAX_TRANSPORT_GPU_LOOPBACK_H_
