#include "handlers/transports.h"

#include <mutex>

#include "backends/memory/memory_backend.h"
#include "backends/network/network.h"
#include "runtime/job_network.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

// A wire's process_group lives as long as call sites use it, or the wire itself.
struct OpenProcessGroup {
  std::mutex mutex;
  std::shared_ptr<Wire> wire;
  std::shared_ptr<ProcessGroup> process_group;
};

}  // namespace

ffi::ErrorOr<std::shared_ptr<ProcessGroup>> ProcessGroupOf(const CallSite& site) {
  auto& open = ProcessState<OpenProcessGroup>();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const auto current = TheWire();
  if (current == nullptr) {
    return ffi::Unexpected(ffi::Error::Internal(
        site.Prefix() + "devices of other processes take part, and this process has opened no network."));
  }
  if (current != open.wire) {
    open.wire = current;
    open.process_group = std::make_shared<ProcessGroup>(current);
  }
  return open.process_group;
}

ffi::ErrorOr<std::shared_ptr<Transport>> TransportOf(const CallSite& site) {
  if (!site.spans_processes()) return std::shared_ptr<Transport>(std::make_shared<memory::InProcessTransport>());
  auto process_group = ProcessGroupOf(site);
  if (!process_group.has_value()) return ffi::Unexpected(process_group.error());
  return std::shared_ptr<Transport>(std::make_shared<network::NetworkTransport>(*process_group));
}

}  // namespace fastjax::handlers
