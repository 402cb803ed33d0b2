// The transport between devices of one process: memory is shared, so rows are copied by the process itself.
#ifndef FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
#define FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_

#include <memory>

#include "exchange/backend.h"

namespace fastjax::memory {

class InProcessTransport final : public Transport {
 public:
  static InProcessTransport& Get();

  std::unique_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  std::unique_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;
};

}  // namespace fastjax::memory

#endif  // FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
