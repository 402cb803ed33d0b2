// Which backend a call site gets, on CPUs and on GPUs, and what is said where there is none.
#include "backends/registry.h"

#include <chrono>
#include <memory>
#include <string>

#include "backends/gpu/device/driver_library.h"
#include "backends/gpu/gpu_backend.h"
#include "backends/gpu_registry.h"
#include "backends/memory/memory_backend.h"
#include "backends/network/network_backend.h"
#include "runtime/job_network.h"
#include "support/check.h"
#include "support/job_transport.h"
#include "support/sites.h"

namespace fastjax::test {
namespace {

constexpr const char* kNoNetwork =
    "exchange over axis 'x' (channel 7): devices of other processes take part, and this process has opened no network.";

std::shared_ptr<CallSite> SiteOfProcesses() {
  auto site = MakeSite(1, 2);
  site->process_of = {0, 1};
  site->rail_of = {0, 0};
  return site;
}

template <typename Is, typename Base>
bool Holds(const std::shared_ptr<Base>& backend) {
  return dynamic_cast<const Is*>(backend.get()) != nullptr;
}

void Open() {
  static std::shared_ptr<DeadJobTransport> transport;
  std::string addresses;
  CHECK_EQ(OpenTheTransport(OpenDead(&transport), {}, &addresses), "");
}

void Close() { CHECK(CloseTheTransport(std::chrono::milliseconds{0})); }

TEST(WithoutNetwork) {
  std::shared_ptr<Backend> backend;
  CHECK(FindBackend(*MakeSite(1, 2), &backend).ok());
  CHECK(Holds<memory::MemoryBackend>(backend));
  const Status status = FindBackend(*SiteOfProcesses(), &backend);
  CHECK(status.code == Code::kInternal);
  CHECK_EQ(status.message, kNoNetwork);
  PlatformBackend on_gpu;
  CHECK_EQ(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &on_gpu).message, kNoNetwork);
}

// Call sites share the processes' group for as long as the network is the same.
TEST(WithNetwork) {
  Open();
  std::shared_ptr<Backend> backend;
  CHECK(FindBackend(*MakeSite(1, 2), &backend).ok());
  CHECK(Holds<memory::MemoryBackend>(backend));
  CHECK(FindBackend(*SiteOfProcesses(), &backend).ok());
  CHECK(Holds<network::NetworkBackend>(backend));
  std::shared_ptr<ProcessGroup> first, again, renewed;
  CHECK(FindProcessGroup(*SiteOfProcesses(), &first).ok());
  CHECK(FindProcessGroup(*SiteOfProcesses(), &again).ok());
  CHECK(first == again);
  CHECK(first->transport == TheTransport());
  Close();
  Open();
  CHECK(FindProcessGroup(*SiteOfProcesses(), &renewed).ok());
  CHECK(renewed != first);
  CHECK(renewed->transport == TheTransport());
  Close();
}

TEST(Gpus) {
  PlatformBackend found, loopback, again;
  CHECK(FindGpuBackend("cpu", *MakeSite(1, 2), 0, &found).ok());
  CHECK(Holds<gpu::GpuBackend>(found.backend));
  CHECK(FindGpuBackend("cpu", *MakeSite(1, 4), 2, &loopback).ok());
  CHECK(Holds<gpu::GpuBackend>(loopback.backend));
  CHECK(loopback.gpu == found.gpu);
  Open();
  CHECK(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &found).ok());
  CHECK(Holds<gpu::GpuProcessBackend>(found.backend));
  CHECK(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &again).ok());
  CHECK(found.backend != again.backend);
  Close();
}

TEST(NoGpuLibrary) {
  gpu::PlatformOptions options;
  options.library = "libno_gpu_library.so";
  gpu::SetOptions("cuda", options);
  PlatformBackend found;
  const Status status = FindGpuBackend("cuda", *MakeSite(1, 2), 0, &found);
  CHECK(status.code == Code::kInternal);
  CHECK_CONTAINS(status.message,
                 "exchange over axis 'x' (channel 7): cannot load fastjax's GPU library: libno_gpu_library.so");
  CHECK(found.gpu == nullptr && found.backend == nullptr);
}

}  // namespace
}  // namespace fastjax::test
