// The transport between devices of several processes: processes meet by message, plan alike, and each moves the rows
// that pass its devices over a wire.
#ifndef FASTJAX_BACKENDS_NETWORK_NETWORK_H_
#define FASTJAX_BACKENDS_NETWORK_NETWORK_H_

#include <memory>
#include <string>

#include "rendezvous/site.h"
#include "exchange/backend.h"

namespace fastjax::network {

// Completes the description of a call: processes that exchange in different ways must not meet.
std::string Describe(const ExchangeOptions& options);

class NetworkTransport final : public Transport {
 public:
  // Nothing else may handle the wire's messages. The transport must outlive the wire's thread.
  explicit NetworkTransport(std::shared_ptr<Wire> wire) : station_(std::make_shared<Station>(std::move(wire))) {}

  std::unique_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override;
  std::unique_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;
  const std::shared_ptr<Station>& station() const { return station_; }

 private:
  std::shared_ptr<Station> station_;
};

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_NETWORK_H_
