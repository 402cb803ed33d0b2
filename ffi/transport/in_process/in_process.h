// The transport between devices of one process: memory is shared, so rows are copied by the process itself.
#ifndef FASTJAX_TRANSPORT_IN_PROCESS_IN_PROCESS_H_
#define FASTJAX_TRANSPORT_IN_PROCESS_IN_PROCESS_H_

#include <memory>

#include "transport/transport.h"

namespace fastjax::transport::in_process {

class InProcessTransport final : public Transport {
 public:
  static InProcessTransport& Get();

  std::unique_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  std::unique_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;
};

}  // namespace fastjax::transport::in_process

#endif  // FASTJAX_TRANSPORT_IN_PROCESS_IN_PROCESS_H_
