// Declares ProcessLaunch: one launch of a call site by this process's devices, from their arrival until they are
// completed.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_
#define FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/process_group.h"
#include "rendezvous/rendezvous.h"
#include "runtime/completer.h"
#include "runtime/fault_points.h"
#include "runtime/recorder.h"
#include "runtime/reused.h"

namespace fastjax {

// One launch, which takes part in the session of the processes. Later launches of the same call site reuse it. Its
// operation, which has what it is constructed with, lives as long.
template <typename LaunchArgs>
class ProcessLaunch : public Participant {
 public:
  using Args = LaunchArgs;
  using Session = typename Rendezvous<Args>::Session;

  ProcessLaunch(const Site& site, Recorder* recorder) : site_(site), recorder_(recorder) {
    process_session_.participant = this;
  }

  const Site& site() const { return site_; }
  int32_t group() const { return process_session_.key.group; }
  int64_t order() const { return order_; }  // among the launches of this process
  ProcessSession& process_session() { return process_session_; }
  const std::vector<Args>& args() const { return args_; }  // by position; of other processes once all have met

  // On the thread of the last device to arrive: joins the process session. `done` is called on the transport's thread
  // when the launch is over, and the object may then be reused.
  void Begin(Session* session, std::function<void()> done) {
    session_ = session;
    done_ = std::move(done);
    order_ = NextLaunch();
    launch_ = recorder_->Begin();
    bool named = false;
    const Status written = Guarded([&] {
      site_.Begin(session->run_id(), session->group(), &process_session_);
      named = true;
      args_.assign(session->args().begin(), session->args().end());
      site_.Write(args_, &process_session_);
    });
    if (!written.ok()) return EndAlone(written, named);
    const bool posted = site_.process_group().transport->Post([this] {
      FaultPoints::Get().At(order_, "meet");
      site_.process_group().rendezvous.Join(&process_session_);
    });
    if (!posted) End(Status::Unavailable(process_session_.prefix + "the network of this process has been closed."));
  }

 protected:
  // Does what can be done once the processes have met, with everybody's message, on the transport's thread or another.
  // `found_by_all`, true at first: whether every process finds the same mistake.
  virtual Status Prepare(bool* found_by_all) = 0;
  // Called when that has succeeded, on the transport's thread.
  virtual void Run() { Finish(Status::Ok()); }
  // Called when the launch has failed, on the transport's thread: at once, or when what is prepared has been.
  virtual void Abort(const Status& why) { Finish(why); }
  // Whether another thread prepares. Rows of other exchanges that move need the transport's thread, so large groups are
  // not planned for there.
  virtual bool PreparesLong() const {
    return site_.call_site().group_size >= kLargeGroup &&
           site_.process_group().rendezvous.OthersHaveMet(process_session_);
  }
  bool preparing() const { return preparing_; }

  // The launch's measurements, which begin again once the processes have met.
  Launch* launch() { return &launch_; }
  // Returns what the launch moved, if it succeeded.
  virtual LaunchSummary summary() const = 0;
  // Leaves the process session and completes the devices.
  void Finish(const Status& status) {
    site_.process_group().rendezvous.Leave(&process_session_);
    End(status);
  }

 private:
  // From so many devices on, planning takes longer than handing it over (benchmarks/results/plan_time.md).
  static constexpr int32_t kLargeGroup = 96;

  void OnMet() final {
    FaultPoints::Get().At(order_, "met");
    launch_.Restart();
    preparing_ = true;
    found_by_all_ = true;
    const auto prepare = [this] {
      return Guarded([this] {
        const Status read = site_.Read(process_session_, &args_);
        return read.ok() ? Prepare(&found_by_all_) : read;
      });
    };
    const auto elsewhere = [this, prepare] {
      // The transport lives as long as there is a process session.
      static_cast<void>(site_.process_group().transport->Post([this, status = prepare()] { OnPrepared(status); }));
    };
    if (PreparesLong() && Guarded([&] { Completer::Get().Run(elsewhere); }).ok()) return;
    OnPrepared(prepare());
  }

  void OnFailed(const Status& why) final {
    if (!preparing_) return Abort(why);
    failure_ = why;
  }

  void OnPrepared(const Status& status) {
    preparing_ = false;
    if (process_session_.failed) {
      // What went wrong here in the meantime, if that is something else, is reported, too.
      if (!status.ok() && status.message != failure_.message) failure_.message += " Here: " + status.message;
      return Abort(failure_);
    }
    if (status.ok()) return Run();
    // All processes find the same mistakes, but a lack of memory is one process's own.
    ProcessRendezvous& rendezvous = site_.process_group().rendezvous;
    if (found_by_all_ && status.code == Code::kInvalidArgument) return rendezvous.FailHere(&process_session_, status);
    rendezvous.FailEverywhere(&process_session_, status);
  }

  // Ends a launch that the other processes have not been told of yet. They are told now, if the launch has an id.
  void EndAlone(const Status& why, bool named) {
    const bool posted = named && site_.process_group().transport->Post([this, why] {
      site_.process_group().rendezvous.TellAll(process_session_, why);
      End(why);
    });
    if (!posted) End(why);
  }

  void End(const Status& status) {
    recorder_->End(launch_, status, status.ok() && launch_.recorded ? summary() : LaunchSummary{});
    Session* session = std::exchange(session_, nullptr);
    const auto done = std::move(done_);
    done_ = nullptr;
    session->Finish(status);
    done();
  }

  const Site& site_;
  Recorder* const recorder_;
  Launch launch_;
  int64_t order_ = 0;
  bool preparing_ = false;
  bool found_by_all_ = true;
  Status failure_;  // of the session, while it is prepared
  ProcessSession process_session_;
  std::vector<Args> args_;
  Session* session_ = nullptr;
  std::function<void()> done_;
};

// The operation of a call site in this process: each time that its devices have arrived, a launch begins, or is taken
// over from an earlier one. Launches share a `Shared`.
template <typename OneLaunch, typename Shared>
class ProcessOperation final : public Rendezvous<typename OneLaunch::Args> {
 public:
  using typename Rendezvous<typename OneLaunch::Args>::Session;

  ProcessOperation(std::shared_ptr<ProcessGroup> process_group, const std::shared_ptr<const CallSite>& call_site,
                   const std::string& what, std::unique_ptr<Recorder> recorder, Shared shared)
      : Rendezvous<typename OneLaunch::Args>(call_site, process_group->transport->process()),
        site_(std::move(process_group), call_site, what),
        recorder_(std::move(recorder)),
        shared_(std::move(shared)) {}

 private:
  void Execute(Session* session, int32_t /*last*/) override {
    OneLaunch* launch = nullptr;
    const Status taken = Guarded([&] { launch = launches_.Take(site_, recorder_.get(), shared_); });
    if (taken.ok()) {
      // It is needed until the launch has been returned, which is after the end of the session.
      return launch->Begin(session, [this, self = this->shared_from_this(), launch] { launches_.Return(launch); });
    }
    static_cast<void>(Guarded([&] { OnFailed(*session, taken); }));
    session->Finish(taken);
  }

  // The other processes are told, so that they need not wait for their time-out.
  void OnFailed(const Session& session, const Status& why) override {
    recorder_->Fail();
    Post(session.run_id(), session.group(),
         [why](ProcessRendezvous* rendezvous, const ProcessSession& untold) { rendezvous->TellAll(untold, why); });
  }

  // The other processes are told if they come.
  void OnAbsent(int64_t run_id, int32_t group, const Status& why) override {
    Post(run_id, group,
         [why](ProcessRendezvous* rendezvous, const ProcessSession& untold) { rendezvous->TellComers(untold, why); });
  }

  template <typename Tell>
  void Post(int64_t run_id, int32_t group, const Tell& tell) {
    auto process_session = std::make_shared<ProcessSession>();
    site_.Begin(run_id, group, process_session.get());
    site_.process_group().transport->Post([this, self = this->shared_from_this(), process_session, tell] {
      tell(&site_.process_group().rendezvous, *process_session);
    });
  }

  const Site site_;
  const std::unique_ptr<Recorder> recorder_;
  const Shared shared_;
  Reused<OneLaunch> launches_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_
