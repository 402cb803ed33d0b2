#include "handlers/transports.h"

#include <mutex>

#include "transport/in_process/in_process.h"
#include "transport/network/the_wire.h"

namespace fastjax::handlers {

ffi::ErrorOr<std::shared_ptr<transport::network::NetworkTransport>> NetworkOf(const transport::CallSite& site) {
  // A wire's transport lives as long as call sites use it, or the wire itself.
  static auto& mutex = *new std::mutex;
  static auto& wire = *new std::shared_ptr<transport::network::Wire>;
  static auto& network = *new std::shared_ptr<transport::network::NetworkTransport>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto current = transport::network::TheWire();
  if (current == nullptr) {
    return ffi::Unexpected(ffi::Error::Internal(
        site.Prefix() + "devices of other processes take part, and this process has opened no network."));
  }
  if (current != wire) {
    wire = current;
    network = std::make_shared<transport::network::NetworkTransport>(current);
  }
  return network;
}

ffi::ErrorOr<std::shared_ptr<transport::Transport>> TransportOf(const transport::CallSite& site) {
  using transport::Transport;
  if (!site.spans_processes()) {
    // Never destroyed, hence owned by nobody.
    return std::shared_ptr<Transport>(std::shared_ptr<void>(), &transport::in_process::InProcessTransport::Get());
  }
  auto network = NetworkOf(site);
  if (!network.has_value()) return ffi::Unexpected(network.error());
  return std::shared_ptr<Transport>(*network);
}

}  // namespace fastjax::handlers
