// Processes agree on a communicator by letters.
#ifndef FASTJAX_TRANSPORT_GPU_WIRE_INTRODUCER_H_
#define FASTJAX_TRANSPORT_GPU_WIRE_INTRODUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/gpu/nccl/fabric.h"
#include "transport/network/site.h"

namespace fastjax::transport::gpu {

class WireIntroducer final : public nccl::Introducer {
 public:
  explicit WireIntroducer(std::shared_ptr<network::Station> station) : station_(std::move(station)) {}

  std::string NameOf(const CallSite& site, int32_t group) override;
  Status Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation, bool makes,
               nccl::UniqueId* id) override;

 private:
  const std::shared_ptr<network::Station> station_;
};

}  // namespace fastjax::transport::gpu

#endif  // FASTJAX_TRANSPORT_GPU_WIRE_INTRODUCER_H_
