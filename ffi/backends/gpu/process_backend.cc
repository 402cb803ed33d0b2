#include "backends/gpu/process_backend.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "backends/gpu/ipc/memory_peers.h"
#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_all_gather.h"
#include "rendezvous/process_launch.h"
#include "runtime/completer.h"
#include "runtime/meter.h"

namespace fastjax::gpu {
namespace {

// What a process offers to others: that it would share memory with those of its host.
constexpr int64_t kSharesMemory = 1;

// Such sums read factors of other devices, which processes do not show each other.
bool SumsByIndices(const ExchangeOptions& options) { return options.reverse && options.indexed; }

// What the launches of a call site share.
struct Shared {
  Shared(std::shared_ptr<Gpu> g, std::shared_ptr<Fabric> f, const std::shared_ptr<ipc::Memory>& memory,
         ExchangeOptions o)
      : gpu(std::move(g)),
        fabric(std::move(f)),
        memory_peers(memory == nullptr || SumsByIndices(o) ? nullptr : std::make_unique<ipc::MemoryPeers>(gpu, memory)),
        options(std::move(o)) {}

  const std::shared_ptr<Gpu> gpu;
  const std::shared_ptr<Fabric> fabric;
  const std::unique_ptr<ipc::MemoryPeers> memory_peers;  // null: memory is not shared
  const ExchangeOptions options;
  Channels channels;
};

class GpuLaunch final : public ProcessLaunch<ExchangeArgs> {
 public:
  GpuLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Meter> meter, std::shared_ptr<Shared> shared)
      : ProcessLaunch(std::move(site), std::move(meter)),
        shared_(std::move(shared)),
        work_(shared_->gpu.get(), shared_->fabric.get(), &shared_->channels) {}

  // What follows takes memory of devices, and the first time processes make a communicator together, which takes
  // seconds and messages: not for the wire's thread.
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
      // All processes find the same mistakes, but a lack of memory is one process's own.
      alike = alike && status.code == Code::kInvalidArgument;
      // The wire lives as long as somebody is in a process session.
      static_cast<void>(site().process_group().wire->Post([this, status, alike] { OnLaunched(status, alike); }));
    });
  }

  void OnFailed(const Status& why) override {
    if (!launching_) return Finish(why);
    // Memory of the devices is in use until that has ended, which need not wait for the others.
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = why;
    if (all_gather_ != nullptr) all_gather_->Cancel(why);
  }

  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  Seen seen() const override {
    Seen seen = work_.seen();
    if (metered() && shared_->memory_peers != nullptr) {
      seen.memory_refusal = shared_->memory_peers->Refusal(group());
      if (seen.memory_refusal.empty() && !shares_) seen.memory_refusal = "another process does not share memory";
    }
    return seen;
  }

  Status PrepareAndLaunch(bool* alike) {
    const CallSite& call = site().call_site();
    if (Status status = ReadMetadata(site(), group(), process_session(), &args()); !status.ok()) return status;
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
    shares_ = shared_->memory_peers != nullptr &&
              std::all_of(args().begin(), args().end(), [](const auto& of) { return of.offer == kSharesMemory; });
    if (!shares_) return work_.Prepare(call, group(), args(), shared_->options, ranks_, alike, launch());
    const auto all_gather = [this](const char* about, std::vector<int64_t> words,
                                   std::vector<std::vector<int64_t>>* answers) {
      return ProcessAllGather(about, std::move(words), answers);
    };
    const ipc::Participants participants{call, group(), site().process(), process_session().others, all_gather};
    return work_.Prepare(participants, shared_->memory_peers.get(), &args(), shared_->options, ranks_, alike, launch());
  }

  // With the processes that have met for this exchange.
  Status ProcessAllGather(const char* about, std::vector<int64_t> words, std::vector<std::vector<int64_t>>* answers) {
    const ProcessSession& met = process_session();
    fastjax::ProcessAllGather all_gather(&site().process_group(), std::move(words));
    ProcessSession& next = all_gather.process_session();
    next.text = std::string(about) + ", for " + met.text;
    const std::string named = next.text + " of " + std::to_string(met.key.call);
    next.key = {site().process_group().wire->KeyedHash(named.data(), named.size()), met.key.group};
    next.launch_id = met.launch_id;
    next.others = met.others;
    next.timeout = met.timeout;
    next.prefix = met.prefix;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_.ok()) return failure_;
      all_gather_ = &all_gather;
    }
    Status status = all_gather.Run(answers);
    const std::lock_guard<std::mutex> lock(mutex_);
    all_gather_ = nullptr;
    return status;
  }

  void OnLaunched(const Status& launched, bool alike) {
    launching_ = false;
    if (process_session().failed) return Finish(FailureBeside(launched));
    if (launched.ok()) return Finish(launched);
    ProcessRendezvous& rendezvous = site().process_group().rendezvous;
    alike ? rendezvous.FailAlike(&process_session(), launched) : rendezvous.GiveUp(&process_session(), launched);
  }

  // Returns the failure of the process session, and what went wrong here in the meantime if that is something else.
  // Each is reported once.
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
  fastjax::ProcessAllGather* all_gather_ = nullptr;  // in flight
};

class GpuNetworkExchange final : public Exchange {
 public:
  GpuNetworkExchange(const std::shared_ptr<ProcessGroup>& process_group, const std::shared_ptr<const CallSite>& site,
                     const std::shared_ptr<Shared>& shared)
      : site_(site),
        shared_(shared),
        launches_(process_group, site, "on GPUs, " + Describe(shared->options),
                  std::make_shared<Meter>(site, shared->options, true),
                  [shared](std::shared_ptr<const Site> at, std::shared_ptr<Meter> meter) {
                    return std::make_unique<GpuLaunch>(std::move(at), std::move(meter), shared);
                  }) {}

  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    const int32_t group = site_->group_of[static_cast<size_t>(partition)];
    if (shared_->memory_peers != nullptr && shared_->memory_peers->Sought(group)) args.offer = kSharesMemory;
    launches_.Arrive(run_id, partition, args, std::move(done));
  }

  void Refuse(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    launches_.Refuse(run_id, partition, why, std::move(done));
  }

 private:
  const std::shared_ptr<const CallSite> site_;
  const std::shared_ptr<Shared> shared_;
  ProcessLaunches<ExchangeArgs, GpuLaunch> launches_;
};

}  // namespace

std::unique_ptr<Counts> GpuProcessBackend::OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) {
  return OpenProcessCounts(process_group_, site, std::move(plan));
}

std::unique_ptr<Exchange> GpuProcessBackend::OpenExchange(std::shared_ptr<const CallSite> site,
                                                          ExchangeOptions options) {
  return std::make_unique<GpuNetworkExchange>(process_group_, site,
                                              std::make_shared<Shared>(gpu_, fabric_, memory_, std::move(options)));
}

}  // namespace fastjax::gpu
