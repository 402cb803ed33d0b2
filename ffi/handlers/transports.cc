#include "handlers/transports.h"

#include <mutex>

#include "backends/memory/memory_backend.h"
#include "backends/network/the_wire.h"

namespace fastjax::handlers {

ffi::ErrorOr<std::shared_ptr<network::NetworkTransport>> NetworkOf(const CallSite& site) {
  // A wire's transport lives as long as call sites use it, or the wire itself.
  static auto& mutex = *new std::mutex;
  static auto& wire = *new std::shared_ptr<Wire>;
  static auto& network = *new std::shared_ptr<network::NetworkTransport>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto current = network::TheWire();
  if (current == nullptr) {
    return ffi::Unexpected(ffi::Error::Internal(
        site.Prefix() + "devices of other processes take part, and this process has opened no network."));
  }
  if (current != wire) {
    wire = current;
    network = std::make_shared<network::NetworkTransport>(current);
  }
  return network;
}

ffi::ErrorOr<std::shared_ptr<Transport>> TransportOf(const CallSite& site) {
  if (!site.spans_processes()) {
    // Never destroyed, hence owned by nobody.
    return std::shared_ptr<Transport>(std::shared_ptr<void>(), &memory::InProcessTransport::Get());
  }
  auto network = NetworkOf(site);
  if (!network.has_value()) return ffi::Unexpected(network.error());
  return std::shared_ptr<Transport>(*network);
}

}  // namespace fastjax::handlers
