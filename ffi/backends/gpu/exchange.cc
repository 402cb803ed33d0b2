#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/rendezvous.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {
namespace {

using Session = Rendezvous<ExchangeArgs>::Session;

// One device executes all ranks.
bool IsOneCall(const Session& session) {
  const void* const first = session.args().front().context;
  return std::all_of(session.args().begin(), session.args().end(),
                     [&](const ExchangeArgs& args) { return args.context == first; });
}

// The device that arrives last puts everybody's work on the streams.
struct GpuExchange final : Rendezvous<ExchangeArgs> {
  GpuExchange(std::shared_ptr<Gpu> g, std::shared_ptr<Fabric> f, const std::shared_ptr<const CallSite>& s,
              ExchangeOptions o)
      : Rendezvous(s),
        gpu(std::move(g)),
        fabric(std::move(f)),
        options(std::move(o)),
        recorder(s, options, true),
        ranks(static_cast<size_t>(s->group_size)),
        work(gpu.get(), fabric.get(), &channels) {
    std::iota(ranks.begin(), ranks.end(), 0);
  }

  void OnFailed(const Session& /*session*/, const Status& /*why*/) override { recorder.Fail(); }

  void Execute(Session* session, int32_t last) override {
    const bool one_call = IsOneCall(*session);
    const Status status = Execute(*session);
    one_call ? session->FinishHere(status) : session->Finish(status, last);
  }

  // Launches and groups wait for each other here, for as long as it takes to put work on streams.
  Status Execute(const Session& session) {
    const std::lock_guard<std::mutex> lock(mutex);
    Launch launch = recorder.Begin();
    Status status = Guarded([&] { return PrepareAndLaunch(session, &launch); });
    recorder.End(launch, status, status.ok() ? work.summary() : LaunchSummary{});
    return status;
  }

  Status PrepareAndLaunch(const Session& session, Launch* launch) {
    bool found_by_all = true;  // there are no other processes
    Status status = work.Prepare(site(), session.group(), session.args(), options, ranks, &found_by_all, launch);
    return status.ok() ? work.Launch(site(), session.group()) : status;
  }

  const std::shared_ptr<Gpu> gpu;
  const std::shared_ptr<Fabric> fabric;
  const ExchangeOptions options;
  Recorder recorder;
  std::vector<int32_t> ranks;  // all
  std::mutex mutex;
  Channels channels;
  Work work;
};

}  // namespace

std::shared_ptr<Counts> GpuBackend::OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return OpenDeviceCounts(site, std::move(plan));
}

std::shared_ptr<Exchange> GpuBackend::OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) {
  return OpenRendezvous<GpuExchange>(gpu_, fabric_, std::move(site), std::move(options));
}

}  // namespace fastjax::gpu
