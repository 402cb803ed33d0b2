// Declares ProcessLaunch: one launch of a call site by this process's devices, from their arrival until they are
// completed.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_
#define FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/metadata.h"
#include "rendezvous/process_group.h"
#include "rendezvous/rendezvous.h"
#include "runtime/completer.h"
#include "runtime/fault_points.h"
#include "runtime/launch_order.h"
#include "runtime/meter.h"

namespace fastjax {

// One launch, which takes part in the session of the processes. Later launches of the same call site reuse it.
template <typename Args>
class ProcessLaunch : public Participant {
 public:
  using Session = typename Rendezvous<Args>::Session;

  ProcessLaunch(std::shared_ptr<const Site> site, std::shared_ptr<Meter> meter)
      : site_(std::move(site)), meter_(std::move(meter)) {
    process_session_.participant = this;
  }

  const Site& site() const { return *site_; }
  int32_t group() const { return process_session_.key.group; }
  int64_t order() const { return order_; }  // among the launches of this process
  ProcessSession& process_session() { return process_session_; }
  std::vector<Args>& args() { return args_; }  // by position; of other processes once ReadMetadata has been called

  // On the thread of the last device to arrive: joins the process session. `done` is called on the wire's thread when
  // the launch is over, and the object may then be reused.
  void Begin(Session* session, std::function<void()> done) {
    session_ = session;
    done_ = std::move(done);
    order_ = NextLaunch();
    launch_ = meter_->Begin();
    bool named = false;
    const Status written = Guarded([&] {
      site_->Begin(session->run_id(), session->group(), &process_session_);
      named = true;
      args_.assign(session->args().begin(), session->args().end());
      WriteMetadata(*site_, session->group(), args_, &words_);
      site_->Write(words_, &process_session_);
      return Status::Ok();
    });
    if (!written.ok()) return EndAlone(written, named);
    const bool posted = site_->process_group().wire->Post([this] {
      FaultPoints::Get().AtMeet(order_);
      site_->process_group().rendezvous.Join(&process_session_);
    });
    if (!posted) End(Status::Unavailable(process_session_.prefix + "the network of this process has been closed."));
  }

 protected:
  // Calls `plan` and then, on the wire's thread, `then` with its status. To be called in OnMet. While rows of other
  // exchanges move, which need the wire's thread, another thread plans for large groups. If the session fails
  // meanwhile, Defers keeps the failure for `then`.
  template <typename Plan, typename Then>
  void PlanBesideOthers(Plan plan, Then then) {
    const auto work = [this, plan, then] {
      const Status status = Guarded(plan);
      // The wire lives as long as there is a process session.
      static_cast<void>(site_->process_group().wire->Post([this, then, status] {
        planning_ = false;
        then(status);
      }));
    };
    const bool elsewhere = site_->call_site().group_size >= kLargeGroup &&
                           site_->process_group().rendezvous.OthersHaveMet(process_session_);
    planning_ = elsewhere;
    const Status taken = Guarded([&] {
      if (elsewhere) Completer::Get().Run(work);
      return Status::Ok();
    });
    if (elsewhere && taken.ok()) return;
    planning_ = false;
    then(Guarded(plan));
  }
  // Whether `then` is still to be called, which finds the failure in deferred(). For OnFailed.
  bool Defers(const Status& why) {
    if (planning_) deferred_ = why;
    return planning_;
  }
  bool planning() const { return planning_; }
  const Status& deferred() const { return deferred_; }

  // The launch's measurements, which begin again once the processes have met.
  Launch* launch() { return &launch_; }
  // Returns what the launch moved, if it succeeded.
  virtual Seen seen() const = 0;
  // Leaves the process session and completes the devices.
  void Finish(const Status& status) {
    site_->process_group().rendezvous.Leave(&process_session_);
    End(status);
  }

 private:
  // From so many devices on, planning takes longer than handing it over (benchmarks/results/plan_time.md).
  static constexpr int32_t kLargeGroup = 96;

  // Ends a launch that the other processes have not been told of yet. They are told now, if the launch has an id.
  void EndAlone(const Status& why, bool named) {
    const bool posted = named && site_->process_group().wire->Post([this, why] {
      site_->process_group().rendezvous.StayAway(process_session_, why);
      End(why);
    });
    if (!posted) End(why);
  }

  void End(const Status& status) {
    meter_->End(launch_, status, status.ok() && launch_.metered ? seen() : Seen{});
    Session* session = std::exchange(session_, nullptr);
    const auto done = std::move(done_);
    done_ = nullptr;
    session->Finish(status);
    done();
  }

  const std::shared_ptr<const Site> site_;
  const std::shared_ptr<Meter> meter_;
  Launch launch_;
  int64_t order_ = 0;
  bool planning_ = false;  // on another thread
  Status deferred_;        // the failure of the session meanwhile
  ProcessSession process_session_;
  std::vector<Args> args_;
  std::vector<int64_t> words_;
  Session* session_ = nullptr;
  std::function<void()> done_;
};

// The operation of a call site in this process: its devices arrive here, and each time that all have, a launch begins.
template <typename Args, typename OneLaunch>
class ProcessLaunches {
 public:
  using Make = std::function<std::unique_ptr<OneLaunch>(std::shared_ptr<const Site>, std::shared_ptr<Meter>)>;

  ProcessLaunches(std::shared_ptr<ProcessGroup> process_group, const std::shared_ptr<const CallSite>& call_site,
                  const std::string& what, std::shared_ptr<Meter> meter, Make make)
      : state_(std::make_shared<State>(std::make_shared<const Site>(std::move(process_group), call_site, what),
                                       std::move(meter), std::move(make))),
        rendezvous_(Rendezvous<Args>::Create(
            call_site, [state = state_](auto* session, int32_t) { state->Begin(state, session); },
            state_->site->process(),
            [state = state_](const auto& session, const Status& why) { state->StayAway(session, why); },
            [state = state_](int64_t run_id, int32_t group, const Status& why) {
              state->BeAbsent(run_id, group, why);
            })) {}

  void Arrive(int64_t run_id, int32_t partition, Args args, Completion done) {
    const CallSite& site = state_->site->call_site();
    rendezvous_->Arrive(run_id, site.group_of[partition], site.position_of[partition], std::move(args),
                        std::move(done));
  }

  void Refuse(int64_t run_id, int32_t partition, const Status& why, Completion done) {
    const CallSite& site = state_->site->call_site();
    rendezvous_->Refuse(run_id, site.group_of[partition], site.position_of[partition], why, std::move(done));
  }

 private:
  struct State {
    State(std::shared_ptr<const Site> s, std::shared_ptr<Meter> f, Make m)
        : site(std::move(s)), meter(std::move(f)), make(std::move(m)) {}

    void Begin(const std::shared_ptr<State>& self, typename ProcessLaunch<Args>::Session* session) {
      OneLaunch* launch = nullptr;
      const Status taken = Guarded([&] {
        launch = Take();
        return Status::Ok();
      });
      if (!taken.ok()) {
        static_cast<void>(Guarded([&] {
          StayAway(*session, taken);
          return Status::Ok();
        }));
        return session->Finish(taken);
      }
      launch->Begin(session, [self, launch] { self->Return(launch); });
    }

    // The other processes are told, so that they need not wait for their time-out.
    void StayAway(const typename ProcessLaunch<Args>::Session& session, const Status& why) const {
      meter->Fail();
      auto process_session = std::make_shared<ProcessSession>();
      site->Begin(session.run_id(), session.group(), process_session.get());
      site->process_group().wire->Post(
          [at = site, process_session, why] { at->process_group().rendezvous.StayAway(*process_session, why); });
    }

    // The other processes are told if they come.
    void BeAbsent(int64_t run_id, int32_t group, const Status& why) const {
      auto process_session = std::make_shared<ProcessSession>();
      site->Begin(run_id, group, process_session.get());
      site->process_group().wire->Post(
          [at = site, process_session, why] { at->process_group().rendezvous.BeAbsent(*process_session, why); });
    }

    OneLaunch* Take() {
      const std::lock_guard<std::mutex> lock(mutex);
      if (free.empty()) {
        free.reserve(launches.size() + 1);  // so that giving one back need not allocate
        launches.push_back(make(site, meter));
        return launches.back().get();
      }
      OneLaunch* launch = free.back();
      free.pop_back();
      return launch;
    }

    void Return(OneLaunch* launch) {
      const std::lock_guard<std::mutex> lock(mutex);
      free.push_back(launch);
    }

    const std::shared_ptr<const Site> site;
    const std::shared_ptr<Meter> meter;
    const Make make;
    std::mutex mutex;
    std::vector<std::unique_ptr<OneLaunch>> launches;
    std::vector<OneLaunch*> free;
  };

  std::shared_ptr<State> state_;
  std::shared_ptr<Rendezvous<Args>> rendezvous_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_LAUNCH_H_
