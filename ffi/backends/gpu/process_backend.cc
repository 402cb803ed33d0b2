#include "backends/gpu/process_backend.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_launch.h"
#include "runtime/completer.h"
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

  // What follows takes memory of devices, and the first time processes make a communicator together, which takes
  // seconds and messages: not for the transport's thread.
  void OnMet() override {
    failure_ = Status::Ok();
    launching_ = true;
    launch()->Restart();
    Completer::Get().Run([this] {
      bool found_by_all = true;
      const Status status = Guarded([&] { return PrepareAndLaunch(&found_by_all); });
      // All processes find the same mistakes, but a lack of memory is one process's own.
      found_by_all = found_by_all && status.code == Code::kInvalidArgument;
      // The transport lives as long as somebody is in a process session.
      static_cast<void>(
          site().process_group().transport->Post([this, status, found_by_all] { OnLaunched(status, found_by_all); }));
    });
  }

  void OnFailed(const Status& why) override {
    if (!launching_) return Finish(why);
    failure_ = why;  // memory of the devices is in use until that has ended
  }

 private:
  LaunchSummary summary() const override { return work_.summary(); }

  Status PrepareAndLaunch(bool* found_by_all) {
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

  void OnLaunched(const Status& launched, bool found_by_all) {
    launching_ = false;
    if (process_session().failed) return Finish(FailureBeside(launched));
    if (launched.ok()) return Finish(launched);
    ProcessRendezvous& rendezvous = site().process_group().rendezvous;
    found_by_all ? rendezvous.FailHere(&process_session(), launched)
                 : rendezvous.FailEverywhere(&process_session(), launched);
  }

  // Returns the failure of the process session, and what went wrong here in the meantime if that is something else.
  // Each is reported once.
  Status FailureBeside(const Status& launched) const {
    Status failure = failure_;
    if (!launched.ok() && launched.message != failure.message) failure.message += " Here: " + launched.message;
    return failure;
  }

  const std::shared_ptr<Shared> shared_;
  std::vector<int32_t> ranks_;
  Work work_;
  // The transport's thread's.
  bool launching_ = false;
  Status failure_;
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
