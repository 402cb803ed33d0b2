#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "handlers/transports.h"
#include "transport/gpu/driver_library.h"
#include "transport/gpu/gpu_transport.h"
#include "transport/gpu/ipc/board.h"
#include "transport/gpu/ipc/memory.h"
#include "transport/gpu/loopback.h"
#include "transport/gpu/nccl/fabric.h"
#include "transport/gpu/network_transport.h"
#include "transport/gpu/wire_introducer.h"

namespace fastjax::handlers {
namespace {

using transport::gpu::Fabric;
using transport::gpu::Gpu;
using transport::gpu::GpuNetworkTransport;
using transport::gpu::ipc::Memory;
using transport::gpu::nccl::NcclFabric;
using transport::network::NetworkTransport;

// What the call sites of a platform share, communicators above all.
struct Shared {
  std::shared_ptr<Fabric> here;     // between devices of this process
  std::shared_ptr<Fabric> between;  // those of several, which meet by this network
  std::shared_ptr<Memory> memory;   // and may share memory; null: they do not
  std::shared_ptr<NetworkTransport> network;
};

std::mutex mutex;

Shared& SharedOn(const std::string& platform) {
  static auto* const shared = new std::map<std::string, Shared>;
  return (*shared)[platform];
}

std::shared_ptr<Fabric> FabricHere(const std::string& platform, const std::shared_ptr<Gpu>& gpu) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Fabric>& here = SharedOn(platform).here;
  if (here == nullptr) {
    here = std::make_shared<NcclFabric>(gpu, transport::gpu::OptionsOf(platform).message_libraries);
  }
  return here;
}

std::shared_ptr<GpuNetworkTransport> TransportBetween(const std::string& platform, const std::shared_ptr<Gpu>& gpu,
                                                      const std::shared_ptr<NetworkTransport>& network) {
  const std::lock_guard<std::mutex> lock(mutex);
  Shared& shared = SharedOn(platform);
  if (shared.network != network) {
    const transport::gpu::PlatformOptions options = transport::gpu::OptionsOf(platform);
    shared.network = network;
    shared.between = std::make_shared<NcclFabric>(gpu, options.message_libraries,
                                                  std::make_shared<transport::gpu::WireIntroducer>(network->station()));
    shared.memory = options.shares_memory ? std::make_shared<Memory>(gpu, transport::gpu::ipc::HostId()) : nullptr;
  }
  return std::make_shared<GpuNetworkTransport>(gpu, shared.between, network, shared.memory);
}

}  // namespace

ffi::ErrorOr<GpuTransport> GpuTransportOf(const ffi::Dictionary& attrs, const transport::CallSite& site,
                                          bool loopback) {
  const auto name = attrs.get<std::string_view>("platform");
  const auto topology = attrs.get<ffi::Span<const int64_t>>("topology");
  if (!name.has_value() || (loopback && (!topology.has_value() || topology->size() < 2))) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a call site's attributes are incomplete"));
  }
  const std::string platform(*name);
  std::string wrong;
  auto gpu = transport::gpu::OpenGpu(platform, &wrong);
  if (gpu == nullptr) return ffi::Unexpected(ffi::Error::Internal(site.Prefix() + wrong + "."));
  if (site.spans_processes()) {
    auto network = NetworkOf(site);
    if (!network.has_value()) return ffi::Unexpected(network.error());
    return GpuTransport{gpu, TransportBetween(platform, gpu, *network)};
  }
  std::shared_ptr<Fabric> fabric = FabricHere(platform, gpu);
  if (loopback) {
    const int64_t devices_per_server = std::max<int64_t>(1, (*topology)[1]);
    fabric = std::make_shared<transport::gpu::LoopbackFabric>(static_cast<int32_t>(devices_per_server));
  }
  return GpuTransport{gpu, std::make_shared<transport::gpu::GpuTransport>(gpu, std::move(fabric))};
}

}  // namespace fastjax::handlers
