#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "backends/gpu/device/driver_library.h"
#include "backends/gpu/gpu_transport.h"
#include "backends/gpu/ipc/barrier_page.h"
#include "backends/gpu/ipc/memory.h"
#include "backends/gpu/loopback.h"
#include "backends/gpu/nccl/fabric.h"
#include "backends/gpu/network_transport.h"
#include "backends/gpu/process_id_exchange.h"
#include "handlers/transports.h"
#include "runtime/process_state.h"

namespace fastjax::handlers {
namespace {

using gpu::Fabric;
using gpu::Gpu;
using gpu::GpuNetworkTransport;
using gpu::ipc::Memory;
using gpu::nccl::NcclFabric;

// What the call sites of a platform share, communicators above all.
struct Shared {
  std::shared_ptr<Fabric> here;     // between devices of this process
  std::shared_ptr<Fabric> between;  // those of several, which meet by this network
  std::shared_ptr<Memory> memory;   // and may share memory; null: they do not
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

std::shared_ptr<GpuNetworkTransport> TransportBetween(const std::string& platform, const std::shared_ptr<Gpu>& gpu,
                                                      const std::shared_ptr<ProcessGroup>& process_group) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  Shared& shared = platforms.shared[platform];
  if (shared.process_group != process_group) {
    const gpu::PlatformOptions options = gpu::OptionsOf(platform);
    shared.process_group = process_group;
    shared.between = std::make_shared<NcclFabric>(gpu, options.message_libraries,
                                                  std::make_shared<gpu::ProcessIdExchange>(process_group));
    shared.memory = options.shares_memory ? std::make_shared<Memory>(gpu, gpu::ipc::HostId()) : nullptr;
  }
  return std::make_shared<GpuNetworkTransport>(gpu, shared.between, process_group, shared.memory);
}

}  // namespace

ffi::ErrorOr<GpuTransport> GpuTransportOf(const ffi::Dictionary& attrs, const CallSite& site, bool loopback) {
  const auto name = attrs.get<std::string_view>("platform");
  const auto topology = attrs.get<ffi::Span<const int64_t>>("topology");
  if (!name.has_value() || (loopback && (!topology.has_value() || topology->size() < 2))) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a call site's attributes are incomplete"));
  }
  const std::string platform(*name);
  std::string wrong;
  auto gpu = gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return ffi::Unexpected(ffi::Error::Internal(site.Prefix() + wrong + "."));
  if (site.spans_processes()) {
    auto process_group = ProcessGroupOf(site);
    if (!process_group.has_value()) return ffi::Unexpected(process_group.error());
    return GpuTransport{gpu, TransportBetween(platform, gpu, *process_group)};
  }
  std::shared_ptr<Fabric> fabric = FabricHere(platform, gpu);
  if (loopback) {
    const int64_t devices_per_server = std::max<int64_t>(1, (*topology)[1]);
    fabric = std::make_shared<gpu::LoopbackFabric>(static_cast<int32_t>(devices_per_server));
  }
  return GpuTransport{gpu, std::make_shared<gpu::GpuTransport>(gpu, std::move(fabric))};
}

}  // namespace fastjax::handlers
