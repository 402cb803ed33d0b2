#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/work.h"
#include "rendezvous/process_launch.h"
#include "runtime/recorder.h"

namespace fastjax::gpu {
namespace {

// What the launches of a call site share.
struct Shared {
  Shared(Gpus g, ExchangeOptions o) : gpus(std::move(g)), options(std::move(o)) {}

  const Gpus gpus;
  const ExchangeOptions options;
  Channels channels;
};

class GpuLaunch final : public ProcessLaunch<ExchangeArgs> {
 public:
  GpuLaunch(const Site& site, Recorder* recorder, const std::shared_ptr<Shared>& shared)
      : ProcessLaunch(site, recorder), shared_(shared.get()), work_(shared_->gpus, &shared_->channels) {}

 private:
  LaunchSummary summary() const override { return work_.summary(); }

  // It takes memory of devices, and the first time processes make a communicator together, which takes seconds and
  // messages: not for the transport's thread. If the session fails meanwhile, that memory is in use until this has
  // ended.
  bool PreparesLong() const override { return true; }

  Status Prepare(bool* found_by_all) override {
    const CallSite& call = site().call_site();
    // The thread is ours: without a device of its own it would make a context on the first GPU, whoever's that is.
    const int32_t device = CallerOf(args()[site().local(group()).front()])->device;
    const Gpu& gpu = *shared_->gpus.gpu;
    if (Status status = gpu.Check(gpu.driver().SetDevice(device), device, "be chosen"); !status.ok()) return status;
    return work_.PrepareAndLaunch(call, group(), args(), shared_->options, site().local_ranks(group()), found_by_all,
                                  launch());
  }

  Shared* const shared_;
  Work work_;
};

// A message says whether it is from the process that made the id, and then the id.
constexpr int64_t kWords = 1 + sizeof(nccl::UniqueId) / sizeof(int64_t);

// Brings an id from the process that made it to all others, for a thread that waits for it.
class Sharing final : public Participant {
 public:
  // Of an id that this process does not make, `id` is written before Run returns. The others are as in ShareId.
  Sharing(ProcessGroup* process_group, const CallSite& site, int32_t group, const std::string& name, int64_t generation,
          bool makes, nccl::UniqueId* id)
      : process_group_(process_group), makes_(makes), id_(id) {
    const Transport& transport = *process_group->transport;
    session_.participant = this;
    session_.text = "the communicators of " + name;
    session_.key = {transport.KeyedHash(session_.text.data(), session_.text.size()), 0};
    session_.launch_id.number = static_cast<uint32_t>(generation);
    session_.timeout = std::chrono::milliseconds(site.timeout_ms);
    session_.others = OtherProcesses(site, group, transport.process());
    session_.words.assign(kWords, 0);
    session_.words[0] = makes ? 1 : 0;
    if (makes) std::memcpy(&session_.words[1], id->bytes, sizeof(id->bytes));
  }

  // Waits no longer than the session does. Must not be called on the transport's thread.
  Status Run() {
    std::future<Status> ended = told_->get_future();
    if (process_group_->transport->Post([this] { Join(); })) return ended.get();
    return Status::Unavailable("the network of this process has been closed.");
  }

  void OnMet() override {
    bool found = makes_;
    for (const auto& message : session_.messages) {
      const ProcessMetadata& theirs = message->metadata;
      if (found || theirs.num_words != kWords || theirs.words[0] != 1) continue;
      std::memcpy(id_->bytes, &theirs.words[1], sizeof(id_->bytes));
      found = true;
    }
    End(found ? Status::Ok() : Status::Internal("no process has made a communicator; do all run the same version?"));
  }
  void OnFailed(const Status& why) override { End(why); }

 private:
  // There may be many attempts with one launch id; those that were given up do not count.
  void Join() {
    while (process_group_->rendezvous.IsGivenUp(session_)) ++session_.launch_id.repetition;
    session_.Encode();
    process_group_->rendezvous.Join(&session_);
  }
  void End(const Status& status) {
    process_group_->rendezvous.Leave(&session_);
    const auto told = told_;  // `this` may be destroyed as soon as the caller is told
    told->set_value(status);
  }

  ProcessGroup* const process_group_;
  const bool makes_;
  nccl::UniqueId* const id_;
  ProcessSession session_;
  const std::shared_ptr<std::promise<Status>> told_ = std::make_shared<std::promise<Status>>();
};

}  // namespace

std::shared_ptr<Exchange> OpenProcessExchange(Gpus gpus, std::shared_ptr<ProcessGroup> process_group,
                                              const std::shared_ptr<const CallSite>& site, ExchangeOptions options) {
  auto recorder = std::make_unique<Recorder>(site, options, true);
  const std::string what = "on GPUs, " + Describe(options);
  return OpenRendezvous<ProcessOperation<GpuLaunch, std::shared_ptr<Shared>>>(
      std::move(process_group), site, what, std::move(recorder),
      std::make_shared<Shared>(std::move(gpus), std::move(options)));
}

nccl::ShareId MakeShareId(std::shared_ptr<ProcessGroup> process_group) {
  return [process_group = std::move(process_group)](const auto&... what) {
    return Sharing(process_group.get(), what...).Run();
  };
}

}  // namespace fastjax::gpu
