// Which transport moves a call site's rows.
#ifndef FASTJAX_HANDLERS_TRANSPORTS_H_
#define FASTJAX_HANDLERS_TRANSPORTS_H_

#include <memory>

#include "backends/gpu/device/gpu.h"
#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "handlers/decode.h"
#include "rendezvous/process_group.h"

namespace fastjax::handlers {

// That of this process alone, or that of the network where devices of other processes take part; an error where that
// has not been opened.
ffi::ErrorOr<std::shared_ptr<Transport>> TransportOf(const CallSite& site);

// Where the processes of the job meet.
ffi::ErrorOr<std::shared_ptr<ProcessGroup>> ProcessGroupOf(const CallSite& site);

struct GpuTransport {
  std::shared_ptr<gpu::Gpu> gpu;
  std::shared_ptr<Transport> transport;
};

// That of the attribute platform: "cuda", "rocm", or "cpu", whose GPUs are emulated; an error where there is none. With
// `loopback`, one device plays all ranks of the attribute topology.
ffi::ErrorOr<GpuTransport> GpuTransportOf(const ffi::Dictionary& attrs, const CallSite& site, bool loopback);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_TRANSPORTS_H_
