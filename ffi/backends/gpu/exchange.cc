#include <memory>
#include <mutex>
#include <utility>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/work.h"
#include "rendezvous/rendezvous.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {
namespace {

// The device that arrives last puts everybody's work on the streams.
class GpuExchange final : public Rendezvous<ExchangeArgs> {
 public:
  GpuExchange(Gpus gpus, const std::shared_ptr<const CallSite>& site, ExchangeOptions options)
      : Rendezvous(site),
        gpus_(std::move(gpus)),
        options_(std::move(options)),
        recorder_(site, options_, true),
        work_(gpus_, &channels_) {}

 private:
  void OnFailed(const Session& /*session*/, const Status& /*why*/) override { recorder_.Fail(); }

  void Execute(Session* session, int32_t last) override {
    const Status status = Execute(*session);
    session->Finish(status, gpus_.fabric == nullptr ? Session::kAllHere : last);
  }

  // Launches and groups wait for each other here, for as long as it takes to put work on streams.
  Status Execute(const Session& session) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Launch launch = recorder_.Begin();
    bool found_by_all = true;  // there are no other processes
    Status status = Guarded([&] {
      return work_.PrepareAndLaunch(site(), session.group(), session.args(), options_, site().rank_of, &found_by_all,
                                    &launch);
    });
    recorder_.End(launch, status, status.ok() ? work_.summary() : LaunchSummary{});
    return status;
  }

  const Gpus gpus_;
  const ExchangeOptions options_;
  Recorder recorder_;
  std::mutex mutex_;
  Channels channels_;
  Work work_;
};

}  // namespace

std::shared_ptr<Exchange> OpenDeviceExchange(Gpus gpus, const std::shared_ptr<const CallSite>& site,
                                             ExchangeOptions options) {
  return OpenRendezvous<GpuExchange>(std::move(gpus), site, std::move(options));
}

}  // namespace fastjax::gpu
