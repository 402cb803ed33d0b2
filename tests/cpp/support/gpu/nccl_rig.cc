#include "support/gpu/nccl_rig.h"

#include <dlfcn.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "backends/gpu/gpu_backend.h"

namespace fastjax::test {

using gpu::Gpu;
using gpu::nccl::Fabric;

FakeNccl& Fake() {
  static FakeNccl* const fake = [] {
    void* const handle = dlopen(FASTJAX_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return reinterpret_cast<FakeNccl* (*)()>(dlsym(handle, kFakeNcclSymbol))();
  }();
  return *fake;
}

std::vector<std::string> FakeLibrary() { return {FASTJAX_FAKE_NCCL}; }

std::shared_ptr<Gpu> LastingGpu(const kernels::Driver* driver) {
  static std::mutex mutex;
  static auto* const lasting = new std::vector<std::shared_ptr<Gpu>>;
  const std::lock_guard<std::mutex> lock(mutex);
  lasting->push_back(std::make_shared<Gpu>(driver));
  return lasting->back();
}

NcclSetting::NcclSetting(const kernels::Driver* driver, std::vector<std::string> libraries)
    : gpu(LastingGpu(driver)), fabric(std::make_shared<Fabric>(gpu, std::move(libraries))) {}

std::unique_ptr<StreamedExchange> NcclSetting::Open(const std::shared_ptr<CallSite>& site,
                                                    const ExchangeOptions& options) const {
  return std::make_unique<StreamedExchange>(gpu, gpu::OpenDeviceExchange({gpu, fabric}, site, options),
                                            site->partitions(), false);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool AreLive(int communicators) {
  return Eventually([&] { return Fake().live == communicators; });
}

}  // namespace fastjax::test
