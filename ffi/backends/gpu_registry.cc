#include "backends/gpu_registry.h"

#include <map>
#include <mutex>
#include <utility>

#include "backends/gpu/device/driver_library.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/nccl/fabric.h"
#include "backends/registry.h"
#include "runtime/process_state.h"

namespace fastjax {
namespace {

using gpu::Fabric;
using gpu::nccl::NcclFabric;

// What the call sites of a platform share, communicators above all.
struct SharedFabric {
  std::shared_ptr<ProcessGroup> process_group;  // by which processes meet; null for devices of this one
  std::shared_ptr<Fabric> fabric;
};

struct Fabrics {
  std::mutex mutex;
  std::map<std::pair<std::string, bool>, SharedFabric> shared;  // by platform, and whether processes meet
};

std::shared_ptr<Fabric> FabricOf(const std::string& platform, const std::shared_ptr<gpu::Gpu>& gpu,
                                 const std::shared_ptr<ProcessGroup>& process_group) {
  auto& fabrics = ProcessState<Fabrics>();
  const std::lock_guard<std::mutex> lock(fabrics.mutex);
  SharedFabric& own = fabrics.shared[{platform, process_group != nullptr}];
  if (own.fabric == nullptr || own.process_group != process_group) {
    own = {process_group, std::make_shared<NcclFabric>(gpu, gpu::OptionsOf(platform).message_libraries,
                                                       process_group ? gpu::MakeShareId(process_group) : nullptr)};
  }
  return own.fabric;
}

}  // namespace

Status FindGpuBackend(const std::string& platform, const CallSite& site, int32_t devices_per_server,
                      PlatformBackend* found) {
  std::string wrong;
  found->gpu = gpu::OpenGpu(platform, &wrong);
  if (found->gpu == nullptr) return Status::Internal(site.Prefix() + wrong + ".");
  if (site.spans_processes() && devices_per_server == 0) {
    std::shared_ptr<ProcessGroup> process_group;
    if (Status status = FindProcessGroup(site, &process_group); !status.ok()) return status;
    auto fabric = FabricOf(platform, found->gpu, process_group);
    found->backend = std::make_shared<gpu::GpuProcessBackend>(found->gpu, std::move(fabric), process_group);
    return Status::Ok();
  }
  std::shared_ptr<Fabric> fabric = std::make_shared<gpu::LoopbackFabric>(devices_per_server);
  if (devices_per_server == 0) fabric = FabricOf(platform, found->gpu, nullptr);
  found->backend = std::make_shared<gpu::GpuBackend>(found->gpu, std::move(fabric));
  return Status::Ok();
}

}  // namespace fastjax
