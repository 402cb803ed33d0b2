// Processes agree on a communicator by letters.
#ifndef FASTJAX_BACKENDS_GPU_WIRE_INTRODUCER_H_
#define FASTJAX_BACKENDS_GPU_WIRE_INTRODUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/gpu/nccl/fabric.h"
#include "rendezvous/site.h"

namespace fastjax::gpu {

class WireIntroducer final : public nccl::Introducer {
 public:
  explicit WireIntroducer(std::shared_ptr<Station> station) : station_(std::move(station)) {}

  std::string NameOf(const CallSite& site, int32_t group) override;
  Status Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation, bool makes,
               nccl::UniqueId* id) override;

 private:
  const std::shared_ptr<Station> station_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_WIRE_INTRODUCER_H_
