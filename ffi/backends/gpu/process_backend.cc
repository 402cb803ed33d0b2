#include <cstdint>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_launch.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {
namespace {

// What the launches of a call site share.
struct Shared {
  Shared(std::shared_ptr<Gpu> g, std::shared_ptr<Fabric> f, ExchangeOptions o)
      : gpu(std::move(g)), fabric(std::move(f)), options(std::move(o)) {}

  const std::shared_ptr<Gpu> gpu;
  const std::shared_ptr<Fabric> fabric;
  const ExchangeOptions options;
  Channels channels;
};

class GpuLaunch final : public ProcessLaunch<ExchangeArgs> {
 public:
  GpuLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Recorder> recorder, std::shared_ptr<Shared> shared)
      : ProcessLaunch(std::move(site), std::move(recorder)),
        shared_(std::move(shared)),
        work_(shared_->gpu.get(), shared_->fabric.get(), &shared_->channels) {}

 private:
  LaunchSummary summary() const override { return work_.summary(); }

  // It takes memory of devices, and the first time processes make a communicator together, which takes seconds and
  // messages: not for the transport's thread. If the session fails meanwhile, that memory is in use until this has
  // ended.
  bool PreparesLong() const override { return true; }

  Status Prepare(bool* found_by_all) override {
    const CallSite& call = site().call_site();
    if (Status status = ReadMetadata(site(), group(), process_session(), &args()); !status.ok()) return status;
    ranks_.clear();
    for (const int32_t position : site().local(group())) ranks_.push_back(call.rank_of[position]);
    // The thread is ours: without a device of its own it would make a context on the first GPU, whoever's that is.
    const int32_t device = CallerOf(args()[site().local(group()).front()])->device;
    Status status = shared_->gpu->Check(shared_->gpu->driver().SetDevice(device), device, "be chosen");
    if (status.ok()) status = work_.Prepare(call, group(), args(), shared_->options, ranks_, found_by_all, launch());
    return status.ok() ? work_.Launch(call, group()) : status;
  }

  const std::shared_ptr<Shared> shared_;
  std::vector<int32_t> ranks_;
  Work work_;
};

}  // namespace

std::shared_ptr<Counts> GpuProcessBackend::OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return OpenProcessCounts(process_group_, site, std::move(plan));
}

std::shared_ptr<Exchange> GpuProcessBackend::OpenExchange(std::shared_ptr<const CallSite> site,
                                                          ExchangeOptions options) {
  auto recorder = std::make_shared<Recorder>(site, options, true);
  const std::string what = "on GPUs, " + Describe(options);
  return OpenRendezvous<ProcessOperation<GpuLaunch, std::shared_ptr<Shared>>>(
      process_group_, site, what, std::move(recorder), std::make_shared<Shared>(gpu_, fabric_, std::move(options)));
}

}  // namespace fastjax::gpu
