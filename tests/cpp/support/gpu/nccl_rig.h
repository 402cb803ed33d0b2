// Exchanges over the fake NCCL, between devices of the emulated GPU that do not reach each other's memory.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_NCCL_RIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_NCCL_RIG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/nccl/fabric.h"
#include "exchange/operation.h"
#include "kernels/driver.h"
#include "support/gpu/fake_nccl.h"
#include "support/gpu/gpu_rig.h"

namespace fastjax::test {

FakeNccl& Fake();
std::vector<std::string> FakeLibrary();

// What it has of the driver, events and such, stays with it to the end of the process: so does it.
std::shared_ptr<gpu::Gpu> LastingGpu(const kernels::Driver* driver);

struct NcclSetting {
  std::shared_ptr<gpu::Gpu> gpu;
  std::shared_ptr<gpu::nccl::Fabric> fabric;

  explicit NcclSetting(const kernels::Driver* driver = DriverWithoutPeers(),
                       std::vector<std::string> libraries = FakeLibrary());
  std::unique_ptr<StreamedExchange> Open(const std::shared_ptr<CallSite>& site, const ExchangeOptions& options) const;
};

// Waits for a minute at most.
bool Eventually(const std::function<bool()>& condition);
// So many communicators, in the end: the watchdog may hold a call site that is closed, while it looks at it.
bool AreLive(int communicators);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_NCCL_RIG_H_
