#include "backends/gpu/network_transport.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "backends/gpu/ipc/neighbours.h"
#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/job.h"
#include "rendezvous/metadata.h"
#include "rendezvous/swap.h"
#include "runtime/completer.h"
#include "runtime/meter.h"

namespace fastjax::gpu {
namespace {

// What a process offers to others: that it would share memory with those of its host.
constexpr int64_t kSharesMemory = 1;

// What the jobs of a call site share.
struct Shared {
  Shared(std::shared_ptr<Gpu> g, std::shared_ptr<Fabric> f, const std::shared_ptr<ipc::Memory>& memory,
         ExchangeOptions o)
      : gpu(std::move(g)),
        fabric(std::move(f)),
        neighbours(memory == nullptr ? nullptr : std::make_unique<ipc::Neighbours>(gpu, memory)),
        options(std::move(o)) {}

  const std::shared_ptr<Gpu> gpu;
  const std::shared_ptr<Fabric> fabric;
  const std::unique_ptr<ipc::Neighbours> neighbours;  // null: memory is not shared
  const ExchangeOptions options;
  Channels channels;
};

class GpuJob final : public Job<ExchangeArgs> {
 public:
  GpuJob(std::shared_ptr<const Site> site, std::shared_ptr<Meter> meter, std::shared_ptr<Shared> shared)
      : Job(std::move(site), std::move(meter)),
        shared_(std::move(shared)),
        work_(shared_->gpu.get(), shared_->fabric.get(), &shared_->channels) {}

  // What follows takes memory of devices, and the first time processes make a communicator together, which takes
  // seconds and letters: not for the wire's thread.
  void OnMet() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      failure_ = Status::Ok();
    }
    launching_ = true;
    launch()->Restart();
    Completer::Get().Run([this] {
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
    // Memory of the devices is in use until that has ended, which need not wait for the others.
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = why;
    if (swap_ != nullptr) swap_->Cancel(why);
  }

  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  Seen seen() const override {
    Seen seen = work_.seen();
    if (metered() && shared_->neighbours != nullptr) {
      seen.memory_refusal = shared_->neighbours->Refusal(group());
      if (seen.memory_refusal.empty() && !shares_) seen.memory_refusal = "another process does not share memory";
    }
    return seen;
  }

  Status PrepareAndLaunch(bool* alike) {
    const CallSite& call = site().call_site();
    if (Status status = ReadMetadata(site(), group(), meeting(), &args()); !status.ok()) return status;
    ranks_.clear();
    for (const int32_t position : site().local(group())) ranks_.push_back(call.rank_of[position]);
    // The thread is ours: without a device of its own it would make a context on the first GPU, whoever's that is.
    const int32_t device = CallerOf(args()[site().local(group()).front()])->device;
    Status chosen = shared_->gpu->Check(shared_->gpu->driver().SetDevice(device), device, "be chosen");
    if (!chosen.ok()) return chosen;
    Status status = Prepare(alike);
    return status.ok() ? work_.Launch(call, group()) : status;
  }

  Status Prepare(bool* alike) {
    const CallSite& call = site().call_site();
    shares_ = shared_->neighbours != nullptr &&
              std::all_of(args().begin(), args().end(), [](const auto& of) { return of.offer == kSharesMemory; });
    if (!shares_) return work_.Prepare(call, group(), args(), shared_->options, ranks_, alike, launch());
    const auto swap = [this](const char* about, std::vector<int64_t> words,
                             std::vector<std::vector<int64_t>>* answers) {
      return Swap(about, std::move(words), answers);
    };
    const ipc::Party party{call, group(), site().process(), meeting().others, swap};
    return work_.Prepare(party, shared_->neighbours.get(), &args(), shared_->options, ranks_, alike, launch());
  }

  // With the processes that have met for this exchange.
  Status Swap(const char* about, std::vector<int64_t> words, std::vector<std::vector<int64_t>>* answers) {
    const Meeting& met = meeting();
    fastjax::Swap swap(&site().station(), std::move(words));
    Meeting& next = swap.meeting();
    next.text = std::string(about) + ", for " + met.text;
    next.key = {site().station().wire->KeyedHash(next.text.data(), next.text.size()), met.key.group};
    next.visit = met.visit;
    next.others = met.others;
    next.timeout = met.timeout;
    next.prefix = met.prefix;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_.ok()) return failure_;
      swap_ = &swap;
    }
    Status status = swap.Run(answers);
    const std::lock_guard<std::mutex> lock(mutex_);
    swap_ = nullptr;
    return status;
  }

  void OnLaunched(const Status& launched, bool alike) {
    launching_ = false;
    if (meeting().failed) return Finish(FailureBeside(launched));
    if (launched.ok()) return Finish(launched);
    Meetings& meetings = site().station().meetings;
    alike ? meetings.FailAlike(&meeting(), launched) : meetings.GiveUp(&meeting(), launched);
  }

  // Of the meeting, and what went wrong here in the meantime, if that is something else: it is told once.
  Status FailureBeside(const Status& launched) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Status failure = failure_;
    if (!launched.ok() && launched.message != failure.message) failure.message += " Here: " + launched.message;
    return failure;
  }

  const std::shared_ptr<Shared> shared_;
  std::vector<int32_t> ranks_;
  Work work_;
  bool shares_ = false;  // in the last exchange, as all of the group do
  bool launching_ = false;
  std::mutex mutex_;
  Status failure_;
  fastjax::Swap* swap_ = nullptr;  // under way
};

class GpuNetworkExchange final : public Exchange {
 public:
  GpuNetworkExchange(const std::shared_ptr<Station>& station, const std::shared_ptr<const CallSite>& site,
                     const std::shared_ptr<Shared>& shared)
      : site_(site),
        shared_(shared),
        entrance_(station, site, "on GPUs, " + Describe(shared->options),
                  std::make_shared<Meter>(site, shared->options, true),
                  [shared](std::shared_ptr<const Site> at, std::shared_ptr<Meter> meter) {
                    return std::make_unique<GpuJob>(std::move(at), std::move(meter), shared);
                  }) {}

  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    const int32_t group = site_->group_of[static_cast<size_t>(partition)];
    if (shared_->neighbours != nullptr && shared_->neighbours->Sought(group)) args.offer = kSharesMemory;
    entrance_.Arrive(run_id, partition, args, std::move(done));
  }

  void Refuse(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    entrance_.Refuse(run_id, partition, why, std::move(done));
  }

 private:
  const std::shared_ptr<const CallSite> site_;
  const std::shared_ptr<Shared> shared_;
  Entrance<ExchangeArgs, GpuJob> entrance_;
};

}  // namespace

std::unique_ptr<Counts> GpuNetworkTransport::OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return OpenProcessCounts(station_, std::move(site), std::move(plan));
}

std::unique_ptr<Exchange> GpuNetworkTransport::OpenExchange(std::shared_ptr<const CallSite> site,
                                                            ExchangeOptions options) {
  return std::make_unique<GpuNetworkExchange>(station_, site,
                                              std::make_shared<Shared>(gpu_, fabric_, memory_, std::move(options)));
}

}  // namespace fastjax::gpu
