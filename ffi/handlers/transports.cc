#include "handlers/transports.h"

#include <mutex>

#include "backends/memory/memory_backend.h"
#include "backends/network/network.h"
#include "runtime/job_network.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

// A wire's station lives as long as call sites use it, or the wire itself.
struct OpenStation {
  std::mutex mutex;
  std::shared_ptr<Wire> wire;
  std::shared_ptr<Station> station;
};

}  // namespace

ffi::ErrorOr<std::shared_ptr<Station>> StationOf(const CallSite& site) {
  auto& open = ProcessState<OpenStation>();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const auto current = TheWire();
  if (current == nullptr) {
    return ffi::Unexpected(ffi::Error::Internal(
        site.Prefix() + "devices of other processes take part, and this process has opened no network."));
  }
  if (current != open.wire) {
    open.wire = current;
    open.station = std::make_shared<Station>(current);
  }
  return open.station;
}

ffi::ErrorOr<std::shared_ptr<Transport>> TransportOf(const CallSite& site) {
  if (!site.spans_processes()) return std::shared_ptr<Transport>(std::make_shared<memory::InProcessTransport>());
  auto station = StationOf(site);
  if (!station.has_value()) return ffi::Unexpected(station.error());
  return std::shared_ptr<Transport>(std::make_shared<network::NetworkTransport>(*station));
}

}  // namespace fastjax::handlers
