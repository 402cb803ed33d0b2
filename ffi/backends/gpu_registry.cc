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
using gpu::Gpu;
using gpu::GpuProcessBackend;
using gpu::nccl::NcclFabric;

// What the call sites of a platform share, communicators above all.
struct Shared {
  std::shared_ptr<Fabric> here;     // between devices of this process
  std::shared_ptr<Fabric> between;  // those of several, which meet by this network
  std::shared_ptr<ProcessGroup> process_group;
};

struct Platforms {
  std::mutex mutex;
  std::map<std::string, Shared> shared;  // by platform
};

std::shared_ptr<Fabric> FabricHere(const std::string& platform, const std::shared_ptr<Gpu>& gpu) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  std::shared_ptr<Fabric>& here = platforms.shared[platform].here;
  if (here == nullptr) {
    here = std::make_shared<NcclFabric>(gpu, gpu::OptionsOf(platform).message_libraries);
  }
  return here;
}

std::shared_ptr<GpuProcessBackend> BackendBetween(const std::string& platform, const std::shared_ptr<Gpu>& gpu,
                                                  const std::shared_ptr<ProcessGroup>& process_group) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  Shared& shared = platforms.shared[platform];
  if (shared.process_group != process_group) {
    shared.process_group = process_group;
    shared.between = std::make_shared<NcclFabric>(gpu, gpu::OptionsOf(platform).message_libraries,
                                                  gpu::MakeIdExchange(process_group));
  }
  return std::make_shared<GpuProcessBackend>(gpu, shared.between, process_group);
}

Status Open(const std::string& platform, const CallSite& site, std::shared_ptr<Gpu>* gpu) {
  std::string wrong;
  *gpu = gpu::OpenGpu(platform, &wrong);
  return *gpu == nullptr ? Status::Internal(site.Prefix() + wrong + ".") : Status::Ok();
}

}  // namespace

Status FindGpuBackend(const std::string& platform, const CallSite& site, PlatformBackend* found) {
  if (Status status = Open(platform, site, &found->gpu); !status.ok()) return status;
  if (!site.spans_processes()) {
    found->backend = std::make_shared<gpu::GpuBackend>(found->gpu, FabricHere(platform, found->gpu));
    return Status::Ok();
  }
  std::shared_ptr<ProcessGroup> process_group;
  if (Status status = FindProcessGroup(site, &process_group); !status.ok()) return status;
  found->backend = BackendBetween(platform, found->gpu, process_group);
  return Status::Ok();
}

Status FindLoopbackBackend(const std::string& platform, const CallSite& site, int32_t devices_per_server,
                           PlatformBackend* found) {
  if (Status status = Open(platform, site, &found->gpu); !status.ok()) return status;
  found->backend =
      std::make_shared<gpu::GpuBackend>(found->gpu, std::make_shared<gpu::LoopbackFabric>(devices_per_server));
  return Status::Ok();
}

}  // namespace fastjax
