#include "backends/gpu/loopback.h"

namespace fastjax::gpu {

Status LoopbackFabric::FindDomains(const CallSite& /*site*/, Layout* layout) {
  for (size_t rank = 0; rank < layout->domain_of.size(); ++rank) {
    layout->domain_of[rank] = static_cast<int32_t>(rank) / devices_per_server_;
  }
  return Status::Ok();
}

Status LoopbackFabric::ChannelOf(const CallSite& site, int32_t /*group*/, const Layout& /*layout*/,
                                 std::shared_ptr<Channel>* channel) {
  *channel = nullptr;
  return Status::Internal(site.Prefix() + "ranks that one device executes must be on one stream.");
}

}  // namespace fastjax::gpu
