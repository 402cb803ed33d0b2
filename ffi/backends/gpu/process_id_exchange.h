// Declares how processes agree on a communicator's id by messages.
#ifndef FASTJAX_BACKENDS_GPU_PROCESS_ID_EXCHANGE_H_
#define FASTJAX_BACKENDS_GPU_PROCESS_ID_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/gpu/nccl/fabric.h"
#include "rendezvous/process_group.h"

namespace fastjax::gpu {

class ProcessIdExchange final : public nccl::UniqueIdExchange {
 public:
  explicit ProcessIdExchange(std::shared_ptr<ProcessGroup> process_group) : process_group_(std::move(process_group)) {}

  std::string NameOf(const CallSite& site, int32_t group) override;
  Status Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation, bool makes,
               nccl::UniqueId* id) override;

 private:
  const std::shared_ptr<ProcessGroup> process_group_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_PROCESS_ID_EXCHANGE_H_
