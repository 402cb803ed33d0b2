#include "backends/registry.h"

#include <map>
#include <mutex>
#include <utility>

#include "backends/gpu/device/driver_library.h"
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

// Finds the group by which the processes of the job meet; null where the call site has devices of this one only.
Status FindProcessGroup(const CallSite& site, std::shared_ptr<ProcessGroup>* process_group) {
  if (!site.spans_processes()) return Status::Ok();
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

// What the call sites of a platform share, communicators above all.
struct SharedFabric {
  std::shared_ptr<ProcessGroup> process_group;  // by which processes meet; null for devices of this one
  std::shared_ptr<gpu::nccl::Fabric> fabric;
};

struct Fabrics {
  std::mutex mutex;
  std::map<std::pair<std::string, bool>, SharedFabric> shared;  // by platform, and whether processes meet
};

std::shared_ptr<gpu::nccl::Fabric> FabricOf(const std::string& platform, const std::shared_ptr<gpu::Gpu>& gpu,
                                            const std::shared_ptr<ProcessGroup>& process_group) {
  auto& fabrics = ProcessState<Fabrics>();
  const std::lock_guard<std::mutex> lock(fabrics.mutex);
  SharedFabric& own = fabrics.shared[{platform, process_group != nullptr}];
  if (own.fabric == nullptr || own.process_group != process_group) {
    own = {process_group,
           std::make_shared<gpu::nccl::Fabric>(gpu, gpu::OptionsOf(platform).message_libraries,
                                               process_group ? gpu::MakeShareId(process_group) : nullptr)};
  }
  return own.fabric;
}

}  // namespace

std::shared_ptr<Exchange> Backend::OpenExchange(const std::shared_ptr<const CallSite>& site,
                                                ExchangeOptions options) const {
  const bool on_gpus = gpus.gpu != nullptr;
  if (process_group == nullptr) {
    return on_gpus ? gpu::OpenDeviceExchange(gpus, site, std::move(options))
                   : memory::OpenExchange(site, std::move(options));
  }
  return on_gpus ? gpu::OpenProcessExchange(gpus, process_group, site, std::move(options))
                 : network::OpenExchange(process_group, site, std::move(options));
}

Status FindBackend(const CallSite& site, Backend* backend) { return FindProcessGroup(site, &backend->process_group); }

Status FindGpuBackend(const std::string& platform, const CallSite& site, int32_t devices_per_server, Backend* backend) {
  std::string wrong;
  const auto gpu = gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return Status::Internal(site.Prefix() + wrong + ".");
  backend->gpus = {gpu, nullptr, devices_per_server};
  if (devices_per_server > 0) return Status::Ok();
  if (Status status = FindProcessGroup(site, &backend->process_group); !status.ok()) return status;
  backend->gpus.fabric = FabricOf(platform, gpu, backend->process_group);
  return Status::Ok();
}

void CountLaunchesFrom(const std::string& module, uint32_t start) {
  auto& open = ProcessState<OpenProcessGroup>();
  const std::lock_guard<std::mutex> lock(open.mutex);
  if (open.process_group != nullptr) open.process_group->launch_ids.CountFrom(module, start);
}

}  // namespace fastjax
