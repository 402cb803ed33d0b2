// Which backend a call site gets, on CPUs and on GPUs, and what is said where there is none.
#include "backends/registry.h"

#include <chrono>
#include <memory>
#include <string>

#include "backends/gpu/device/driver_library.h"
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

void Open() {
  static std::shared_ptr<DeadJobTransport> transport;
  std::string addresses;
  CHECK_EQ(OpenTheTransport(OpenDead(&transport), {}, &addresses), "");
}

void Close() { CHECK(CloseTheTransport(std::chrono::milliseconds{0})); }

TEST(WithoutNetwork) {
  Backend backend;
  CHECK(FindBackend(*MakeSite(1, 2), &backend).ok());
  CHECK(backend.process_group == nullptr && backend.gpus.gpu == nullptr);
  const Status status = FindBackend(*SiteOfProcesses(), &backend);
  CHECK(status.code == Code::kInternal);
  CHECK_EQ(status.message, kNoNetwork);
  CHECK_EQ(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &backend).message, kNoNetwork);
}

// Call sites share the processes' group for as long as the network is the same.
TEST(WithNetwork) {
  Open();
  Backend first, again, renewed;
  CHECK(FindBackend(*MakeSite(1, 2), &first).ok());
  CHECK(first.process_group == nullptr);
  CHECK(FindBackend(*SiteOfProcesses(), &first).ok());
  CHECK(FindBackend(*SiteOfProcesses(), &again).ok());
  CHECK(first.process_group == again.process_group);
  CHECK(first.process_group->transport == TheTransport());
  Close();
  Open();
  CHECK(FindBackend(*SiteOfProcesses(), &renewed).ok());
  CHECK(renewed.process_group != first.process_group);
  CHECK(renewed.process_group->transport == TheTransport());
  Close();
}

// They share communicators with those of their platform that meet likewise.
TEST(Gpus) {
  Backend here, loopback, first, again;
  CHECK(FindGpuBackend("cpu", *MakeSite(1, 2), 0, &here).ok());
  CHECK(here.process_group == nullptr && here.gpus.fabric != nullptr);
  CHECK(FindGpuBackend("cpu", *MakeSite(1, 4), 2, &loopback).ok());
  CHECK(loopback.gpus.fabric == nullptr);
  CHECK_EQ(loopback.gpus.devices_per_server, 2);
  CHECK(loopback.gpus.gpu == here.gpus.gpu);
  Open();
  CHECK(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &first).ok());
  CHECK(FindGpuBackend("cpu", *SiteOfProcesses(), 0, &again).ok());
  CHECK(first.process_group != nullptr && first.gpus.fabric == again.gpus.fabric);
  CHECK(first.gpus.fabric != here.gpus.fabric);
  Close();
}

TEST(NoGpuLibrary) {
  gpu::PlatformOptions options;
  options.library = "libno_gpu_library.so";
  gpu::SetOptions("cuda", options);
  Backend found;
  const Status status = FindGpuBackend("cuda", *MakeSite(1, 2), 0, &found);
  CHECK(status.code == Code::kInternal);
  CHECK_CONTAINS(status.message,
                 "exchange over axis 'x' (channel 7): cannot load fastjax's GPU library: libno_gpu_library.so");
  CHECK(found.gpus.gpu == nullptr);
}

}  // namespace
}  // namespace fastjax::test
