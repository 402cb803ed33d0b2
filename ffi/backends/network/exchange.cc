#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "backends/network/network_backend.h"
#include "backends/network/runner.h"
#include "execution/prepared.h"
#include "rendezvous/process_launch.h"
#include "runtime/fault_points.h"
#include "runtime/recorder.h"

namespace fastjax::network {
namespace {

class ExchangeLaunch final : public ProcessLaunch<ExchangeArgs> {
 public:
  ExchangeLaunch(const Site& site, Recorder* recorder, const ExchangeOptions& options)
      : ProcessLaunch(site, recorder), options_(options) {}

  Status Explain(const Status& why) const override {
    if (!runner_.running()) return why;
    if (!runner_.failure().ok()) return runner_.failure();  // a request of the runner failed first
    return {why.code, why.message + ". Waiting for " + runner_.Waiting()};
  }

  void OnTick(std::chrono::steady_clock::time_point now) override {
    runner_.Tick(now);
    if (process_session().failed || preparing()) return;
    // Called before the requests that are still open have ended, so that the other processes end theirs.
    if (!runner_.failure().ok())
      return site().process_group().rendezvous.FailEverywhere(&process_session(), runner_.failure());
    const auto still = now - runner_.last_progress();
    if (still >= process_session().timeout / 2) runner_.Probe();
    if (still < process_session().timeout) return;
    site().process_group().rendezvous.FailEverywhere(
        &process_session(),
        Status::Deadline(process_session().prefix + "nothing has moved for " +
                         Seconds(process_session().timeout.count()) + ". Waiting for " + runner_.Waiting()));
  }

 private:
  LaunchSummary summary() const override { return prepared_.summary(); }

  Status Prepare(bool* found_by_all) override {
    const CallSite& call = site().call_site();
    const std::vector<int32_t>& ranks = site().local_ranks(group());
    Status loaded = prepared_.Load(call, group(), args(), options_, ranks, found_by_all, launch());
    if (!loaded.ok()) return loaded;
    *found_by_all = false;
    const int32_t process = site().process();
    GroupTraffic& traffic = prepared_.traffic();
    if (options_.reverse && (options_.indexed || traffic.DestinationsOverlap())) {
      return schedule_.BuildSum(call, group(), process, args(), traffic);
    }
    return schedule_.Build(call, group(), process, args(), prepared_.plans(), traffic);
  }

  void Run() override {
    Transport* const transport = site().process_group().transport.get();
    runner_.Start(transport, &site().call_site(), group(), &schedule_, Tag(), order(), [this](const Status& ended) {
      schedule_.Release();
      if (ended.ok()) FaultPoints::Get().At(order(), "end");
      // If a request failed, the other processes must be told; otherwise they know already.
      if (ended.ok() || process_session().failed) return Finish(ended);
      site().process_group().rendezvous.FailEverywhere(&process_session(), ended);
    });
  }

  void Abort(const Status& why) override {
    if (runner_.running()) return runner_.Fail(why);
    schedule_.Release();
    // A process that met all others before may send already. Its sends are taken and thrown away, since it could end
    // them only with the connection, and so with everything else that uses it.
    Runner::DropRows(site().process_group().transport.get(), site().call_site(), Tag());
    Finish(why);
  }

  // Returns the tag of the launch, the same in every process.
  uint64_t Tag() {
    const CallKey& key = process_session().key;
    const LaunchId& id = process_session().launch_id;
    const int64_t words[] = {static_cast<int64_t>(key.call), key.group, id.number, id.counted, id.copy, id.repetition};
    return site().process_group().transport->KeyedHash(words, sizeof(words)) >> Runner::kTagBits << Runner::kTagBits;
  }

  const ExchangeOptions& options_;
  Prepared prepared_;
  MessageSchedule schedule_;
  Runner runner_;
};

}  // namespace

std::shared_ptr<Exchange> OpenExchange(std::shared_ptr<ProcessGroup> process_group,
                                       const std::shared_ptr<const CallSite>& site, ExchangeOptions options) {
  auto recorder = std::make_unique<Recorder>(site, options, false);
  const std::string what = Describe(options);
  return OpenRendezvous<ProcessOperation<ExchangeLaunch, ExchangeOptions>>(std::move(process_group), site, what,
                                                                           std::move(recorder), std::move(options));
}

}  // namespace fastjax::network
