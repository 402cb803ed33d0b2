#include "ipc_rig.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "backends/gpu/ipc/memory.h"
#include "backends/gpu/process_backend.h"
#include "backends/gpu/process_id_exchange.h"
#include "kernels/emulated_gpu.h"
#include "support/check.h"
#include "support/gpu/nccl_rig.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {

using gpu::GpuProcessBackend;
using gpu::ProcessIdExchange;
using gpu::ipc::Memory;
using gpu::nccl::NcclFabric;

IpcJob::IpcJob(const std::shared_ptr<CallSite>& site, const RigOptions& options, int32_t count, uint64_t seed,
               const std::function<ProcessSetup(int32_t process)>& setup)
    : gpu(LastingGpu(fastjax_gpu_driver())) {
#if defined(__SANITIZE_THREAD__)
  // Processes have pages of their own, at other addresses: it would not see what orders rows.
  kernels::emulatedSharing().aliases = true;
#endif
  int32_t next = 0;
  processes = std::make_unique<Processes>(count, seed, [&](std::shared_ptr<ProcessGroup> process_group) {
    const int32_t process = next++;
    const ProcessSetup own = setup == nullptr ? ProcessSetup{} : setup(process);
    const auto its_gpu = LastingGpu(own.driver);
    auto id_exchange = std::make_shared<ProcessIdExchange>(process_group);
    auto fabric = std::make_shared<NcclFabric>(its_gpu, FakeLibrary(), std::move(id_exchange));
    auto memory = own.shares ? std::make_shared<Memory>(its_gpu, own.host) : nullptr;
    return std::make_shared<GpuProcessBackend>(its_gpu, std::move(fabric), std::move(process_group), std::move(memory));
  });
  exchange = Open(site, options);
}

std::unique_ptr<StreamedExchange> IpcJob::Open(const std::shared_ptr<CallSite>& site, const RigOptions& options) const {
  auto opened = std::make_unique<StreamedExchange>(gpu, std::make_unique<Everywhere>(processes.get(), site, options),
                                                   site->partitions(), false);
  opened->UseGuardedMemory();
  return opened;
}

Ring::Ring(int32_t devices, int64_t timeout_ms, uint64_t seed,
           const std::function<ProcessSetup(int32_t process)>& setup)
    : random(seed) {
  options.topology = MakeTopology(devices, 1);
  options.scheduler = planner::Scheduler::kDirect;
  site = MakeSite(1, devices, timeout_ms);
  Deal(Owners::kServers, 1, &random, site.get());
  job = std::make_unique<IpcJob>(site, options, devices, seed, setup);
  rig = std::make_unique<Rig>(site, options, MakeCases(options.topology, random()).back().traffic, &random);
}

Outcomes Ring::Run() {
  rig->Reset();
  return rig->Run(job->exchange.get(), ++run_id, true);
}

void Ring::CheckWorks() {
  rig->Reset();
  rig->CheckRun(job->exchange.get(), ++run_id, true);
}

std::vector<std::string> Ring::RunUntilItWorks(int attempts) {
  std::vector<std::string> said;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const Outcomes outcomes = Run();
    if (outcomes.all_ok()) {
      CHECK(rig->IsRight());
      return said;
    }
    for (int32_t p = 0; p < outcomes.count(); ++p) said.push_back(outcomes.status(p).message);
  }
  CHECK(false);
  return said;
}

int64_t BoardFiles() {
  const std::string own = "fastjax-" + std::to_string(getpid()) + "-";
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    count += entry.path().filename().string().rfind(own, 0) == 0 ? 1 : 0;
  }
  return count;
}

}  // namespace fastjax::test
