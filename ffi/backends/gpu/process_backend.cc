#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/work.h"
#include "rendezvous/counts.h"
#include "rendezvous/metadata.h"
#include "rendezvous/process_all_gather.h"
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

// A message says whether it is from the process that made the id, and then the id.
constexpr size_t kIdWords = sizeof(nccl::UniqueId) / sizeof(int64_t);
constexpr size_t kWords = 1 + kIdWords;

class ProcessIdExchange final : public nccl::UniqueIdExchange {
 public:
  explicit ProcessIdExchange(std::shared_ptr<ProcessGroup> process_group) : process_group_(std::move(process_group)) {}

  std::string NameOf(const CallSite& site, int32_t group) override;
  Status Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation, bool makes,
               nccl::UniqueId* id) override;

 private:
  const std::shared_ptr<ProcessGroup> process_group_;
};

// Devices by their process and their number in it.
std::string ProcessIdExchange::NameOf(const CallSite& site, int32_t group) {
  std::string name = "GPUs";
  for (const int32_t position : site.position_at) {
    const auto partition = static_cast<size_t>(site.partition(group, position));
    name += " " + std::to_string(site.process_of[partition]) + "." + std::to_string(site.rail_of[partition]);
  }
  return name;
}

Status ProcessIdExchange::Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation,
                                bool makes, nccl::UniqueId* id) {
  std::vector<int64_t> words(kWords, 0);
  words[0] = makes ? 1 : 0;
  if (makes) std::memcpy(&words[1], id->bytes, sizeof(id->bytes));
  fastjax::ProcessAllGather all_gather(process_group_.get(), std::move(words));
  ProcessSession& process_session = all_gather.process_session();
  process_session.text = "the communicators of " + name;
  process_session.key = {process_group_->transport->KeyedHash(process_session.text.data(), process_session.text.size()),
                         0};
  process_session.launch_id.run_id = generation;
  process_session.timeout = std::chrono::milliseconds(site.timeout_ms);
  for (int32_t position = 0; position < site.group_size; ++position) {
    const int32_t owner = site.process_of[static_cast<size_t>(site.partition(group, position))];
    if (owner != process_group_->transport->process()) process_session.others.push_back(owner);
  }
  std::sort(process_session.others.begin(), process_session.others.end());
  process_session.others.erase(std::unique(process_session.others.begin(), process_session.others.end()),
                               process_session.others.end());
  std::vector<std::vector<int64_t>> answers;
  if (Status status = all_gather.Run(&answers); !status.ok() || makes) return status;
  for (const std::vector<int64_t>& theirs : answers) {
    if (theirs.size() != kWords || theirs[0] != 1) continue;
    std::memcpy(id->bytes, &theirs[1], sizeof(id->bytes));
    return Status::Ok();
  }
  return Status::Internal("no process has made a communicator; do all run the same version?");
}

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

std::shared_ptr<nccl::UniqueIdExchange> MakeIdExchange(std::shared_ptr<ProcessGroup> process_group) {
  return std::make_shared<ProcessIdExchange>(std::move(process_group));
}

}  // namespace fastjax::gpu
