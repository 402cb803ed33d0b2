#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "backends/network/network_backend.h"
#include "backends/network/runner.h"
#include "execution/prepared.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_launch.h"
#include "runtime/fault_points.h"
#include "runtime/recorder.h"

namespace fastjax::network {
namespace {

// Bits of a tag that the runner uses to tell the messages of one exchange apart.
constexpr int kRunnerBits = 16;

class ExchangeLaunch final : public ProcessLaunch<ExchangeArgs> {
 public:
  ExchangeLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Recorder> recorder,
                 std::shared_ptr<const ExchangeOptions> options)
      : ProcessLaunch(std::move(site), std::move(recorder)), options_(std::move(options)) {}

  // Ends a launch that fails before any row has moved. A process that met all others before may send already. Its sends
  // are taken and thrown away, since it could end them only with the connection, and so with everything else that uses
  // it.
  void FinishAndDrop(const Status& why) {
    const auto drop = [transport = site().process_group().transport.get(), call = site().shared_call_site(),
                       key = process_session().key](const LaunchId& first) {
      Runner::DropRows(transport, *call, TagOf(*transport, key, first));
    };
    if (const LaunchId* first = FirstId(); first != nullptr) {
      drop(*first);
    } else {
      site().process_group().rendezvous.WhenKnown(process_session(), process_session().others.front(), drop);
    }
    Finish(why);
  }

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
    if (Status status = ReadMetadata(site(), group(), process_session(), &args()); !status.ok()) return status;
    ranks_.clear();
    for (const int32_t position : site().local(group())) ranks_.push_back(call.rank_of[position]);
    if (Status status = prepared_.Load(call, group(), args(), *options_, ranks_, found_by_all, launch());
        !status.ok()) {
      return status;
    }
    *found_by_all = false;
    const int32_t process = site().process();
    GroupTraffic& traffic = prepared_.traffic();
    if (options_->reverse && (options_->indexed || traffic.DestinationsOverlap())) {
      return schedule_.BuildSum(call, group(), process, args(), traffic);
    }
    return schedule_.Build(call, group(), process, args(), prepared_.plans(), traffic);
  }

  void Run() override {
    Transport* const transport = site().process_group().transport.get();
    const uint64_t tag = TagOf(*transport, process_session().key, *FirstId());
    runner_.Start(transport, &site().call_site(), group(), &schedule_, tag, order(), [this](const Status& ended) {
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
    FinishAndDrop(why);
  }

  // The id that the first of the processes gave to the launch, once it is known.
  const LaunchId* FirstId() {
    const ProcessSession& met = process_session();
    if (met.others.empty() || site().process() < met.others.front()) return &met.launch_id;
    return met.messages.front() == nullptr ? nullptr : &met.messages.front()->metadata.launch_id;
  }

  // Returns the tag of a launch. Every process makes it from the id that the first of them gave to the launch.
  static uint64_t TagOf(const Transport& transport, const CallKey& key, const LaunchId& first) {
    const int64_t words[] = {
        static_cast<int64_t>(key.call), key.group, first.run_id, first.start, first.copy, first.repetition};
    return transport.KeyedHash(words, sizeof(words)) >> kRunnerBits << kRunnerBits;
  }

  const std::shared_ptr<const ExchangeOptions> options_;
  Prepared prepared_;
  std::vector<int32_t> ranks_;
  MessageSchedule schedule_;
  Runner runner_;
};

}  // namespace

std::shared_ptr<Exchange> NetworkBackend::OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) {
  auto recorder = std::make_shared<Recorder>(site, options, false);
  const std::string what = Describe(options);
  return OpenRendezvous<ProcessOperation<ExchangeLaunch, std::shared_ptr<const ExchangeOptions>>>(
      process_group_, site, what, std::move(recorder), std::make_shared<const ExchangeOptions>(std::move(options)));
}

}  // namespace fastjax::network
