#include "transport/gpu/network_transport.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/gpu/work.h"
#include "transport/in_process/completer.h"
#include "transport/meter.h"
#include "transport/network/job.h"
#include "transport/network/metadata.h"

namespace fastjax::transport::gpu {
namespace {

using network::Site;

// What the jobs of a call site share.
struct Shared {
  Shared(std::shared_ptr<Gpu> g, std::shared_ptr<Fabric> f, ExchangeOptions o)
      : gpu(std::move(g)), fabric(std::move(f)), options(std::move(o)) {}

  const std::shared_ptr<Gpu> gpu;
  const std::shared_ptr<Fabric> fabric;
  const ExchangeOptions options;
  Channels channels;
};

class GpuJob final : public network::Job<ExchangeArgs> {
 public:
  GpuJob(std::shared_ptr<const Site> site, std::shared_ptr<Meter> meter, std::shared_ptr<Shared> shared)
      : Job(std::move(site), std::move(meter)),
        shared_(std::move(shared)),
        work_(shared_->gpu.get(), shared_->fabric.get(), &shared_->channels) {}

  // What follows takes memory of devices, and the first time processes make a communicator together, which takes
  // seconds and letters: not for the wire's thread.
  void OnMet() override {
    failure_ = Status::Ok();
    launching_ = true;
    launch()->Restart();
    in_process::Completer::Get().Run([this] {
      bool alike = true;
      const Status status = Guarded([&] { return PrepareAndLaunch(&alike); });
      // Only mistakes are found alike; want of memory is a process's own.
      alike = alike && status.code == Code::kInvalidArgument;
      // The wire lives as long as somebody is in a meeting.
      static_cast<void>(site().station().wire->Post([this, status, alike] { OnLaunched(status, alike); }));
    });
  }

  void OnFailed(const Status& why) override {
    if (!launching_) return Finish(why);
    failure_ = why;  // memory of the devices is in use until that has ended
  }

  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  Seen seen() const override { return work_.seen(); }

  Status PrepareAndLaunch(bool* alike) {
    const CallSite& call = site().call_site();
    if (Status status = network::ReadMetadata(site(), group(), meeting(), &args()); !status.ok()) return status;
    ranks_.clear();
    for (const int32_t position : site().local(group())) ranks_.push_back(call.rank_of[position]);
    // The thread is ours: without a device of its own it would make a context on the first GPU, whoever's that is.
    const int32_t device = args()[site().local(group()).front()].caller->device;
    Status chosen = shared_->gpu->Check(shared_->gpu->driver().SetDevice(device), device, "be chosen");
    if (!chosen.ok()) return chosen;
    Status status = work_.Prepare(call, group(), args(), shared_->options, ranks_, alike, launch());
    return status.ok() ? work_.Launch(call, group()) : status;
  }

  void OnLaunched(const Status& launched, bool alike) {
    launching_ = false;
    if (meeting().failed) return Finish(failure_);
    if (launched.ok()) return Finish(launched);
    network::Meetings& meetings = site().station().meetings;
    alike ? meetings.FailAlike(&meeting(), launched) : meetings.GiveUp(&meeting(), launched);
  }

  const std::shared_ptr<Shared> shared_;
  std::vector<int32_t> ranks_;
  Work work_;
  Status failure_;
  bool launching_ = false;
};

class GpuNetworkExchange final : public Exchange {
 public:
  GpuNetworkExchange(const std::shared_ptr<network::Station>& station, const std::shared_ptr<const CallSite>& site,
                     const std::shared_ptr<Shared>& shared)
      : entrance_(station, site, "on GPUs, " + network::Describe(shared->options),
                  std::make_shared<Meter>(site, shared->options, true),
                  [shared](std::shared_ptr<const Site> at, std::shared_ptr<Meter> meter) {
                    return std::make_unique<GpuJob>(std::move(at), std::move(meter), shared);
                  }) {}

  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    entrance_.Arrive(run_id, partition, args, std::move(done));
  }

 private:
  network::Entrance<ExchangeArgs, GpuJob> entrance_;
};

}  // namespace

std::unique_ptr<Counts> GpuNetworkTransport::OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return network_->OpenCounts(std::move(site), std::move(plan));
}

std::unique_ptr<Exchange> GpuNetworkTransport::OpenExchange(std::shared_ptr<const CallSite> site,
                                                            ExchangeOptions options) {
  return std::make_unique<GpuNetworkExchange>(network_->station(), site,
                                              std::make_shared<Shared>(gpu_, fabric_, std::move(options)));
}

}  // namespace fastjax::transport::gpu
