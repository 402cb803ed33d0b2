// Declares the backend for GPUs, of one process and of several.
#ifndef FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
#define FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_

#include <memory>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/nccl/fabric.h"
#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "rendezvous/process_group.h"

namespace fastjax::gpu {

// What moves the rows of a call site's GPUs. Kernels write into each other's memory where the hardware allows that;
// elsewhere rows go as messages.
struct Gpus {
  std::shared_ptr<Gpu> gpu;
  // What sends messages. Null where one GPU executes all ranks: kernels and stages are real, and a kernel moves the
  // messages between domains, servers of so many devices.
  std::shared_ptr<nccl::Fabric> fabric;
  int32_t devices_per_server = 0;
};

// Offsets and sizes, and tables, are in pinned memory of the host; rows are in that of the caller's device. A
// completion says that all has been put on streams, not that it has happened.
std::shared_ptr<Exchange> OpenDeviceExchange(Gpus gpus, const std::shared_ptr<const CallSite>& site,
                                             ExchangeOptions options);
// The same between processes, which meet by messages, as on CPUs; rows go through the fabric.
std::shared_ptr<Exchange> OpenProcessExchange(Gpus gpus, std::shared_ptr<ProcessGroup> process_group,
                                              const std::shared_ptr<const CallSite>& site, ExchangeOptions options);

// How the processes of that fabric share a communicator's id: by messages.
nccl::ShareId MakeShareId(std::shared_ptr<ProcessGroup> process_group);

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_GPU_BACKEND_H_
