// Which transport moves a call site's rows.
#ifndef FASTJAX_HANDLERS_TRANSPORTS_H_
#define FASTJAX_HANDLERS_TRANSPORTS_H_

#include <memory>

#include "handlers/decode.h"
#include "transport/gpu/gpu.h"
#include "transport/group.h"
#include "transport/network/network.h"
#include "transport/transport.h"

namespace fastjax::handlers {

// That of this process alone, or that of the network where devices of other processes take part; an error where that
// has not been opened.
ffi::ErrorOr<std::shared_ptr<transport::Transport>> TransportOf(const transport::CallSite& site);

// That of the network alone.
ffi::ErrorOr<std::shared_ptr<transport::network::NetworkTransport>> NetworkOf(const transport::CallSite& site);

struct GpuTransport {
  std::shared_ptr<transport::gpu::Gpu> gpu;
  std::shared_ptr<transport::Transport> transport;
};

// That of the attribute platform: "cuda", "rocm", or "cpu", whose GPUs are emulated; an error where there is none. With
// `loopback`, one device plays all ranks of the attribute topology.
ffi::ErrorOr<GpuTransport> GpuTransportOf(const ffi::Dictionary& attrs, const transport::CallSite& site, bool loopback);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_TRANSPORTS_H_
