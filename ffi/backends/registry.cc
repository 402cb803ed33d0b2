#include "backends/registry.h"

#include <mutex>

#include "backends/memory/memory_backend.h"
#include "backends/network/network_backend.h"
#include "runtime/job_network.h"
#include "runtime/process_state.h"

namespace fastjax {
namespace {

// A transport's process group lives as long as call sites use it, or the transport itself.
struct OpenProcessGroup {
  std::mutex mutex;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<ProcessGroup> process_group;
};

}  // namespace

Status FindProcessGroup(const CallSite& site, std::shared_ptr<ProcessGroup>* process_group) {
  auto& open = ProcessState<OpenProcessGroup>();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const auto current = TheTransport();
  if (current == nullptr) {
    return Status::Internal(site.Prefix() +
                            "devices of other processes take part, and this process has opened no network.");
  }
  if (current != open.transport) {
    open.transport = current;
    open.process_group = std::make_shared<ProcessGroup>(current);
  }
  *process_group = open.process_group;
  return Status::Ok();
}

void CountLaunchesFrom(const std::string& module, uint32_t start) {
  auto& open = ProcessState<OpenProcessGroup>();
  const std::lock_guard<std::mutex> lock(open.mutex);
  if (open.process_group != nullptr) open.process_group->launch_ids.CountFrom(module, start);
}

Status FindBackend(const CallSite& site, std::shared_ptr<Backend>* backend) {
  if (!site.spans_processes()) {
    *backend = std::make_shared<memory::MemoryBackend>();
    return Status::Ok();
  }
  std::shared_ptr<ProcessGroup> process_group;
  if (Status status = FindProcessGroup(site, &process_group); !status.ok()) return status;
  *backend = std::make_shared<network::NetworkBackend>(process_group);
  return Status::Ok();
}

}  // namespace fastjax
