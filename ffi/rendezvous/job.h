// One visit of this process's devices to a call site, from their arrival until they are let go.
#ifndef FASTJAX_RENDEZVOUS_JOB_H_
#define FASTJAX_RENDEZVOUS_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/metadata.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/site.h"
#include "runtime/fault_points.h"
#include "runtime/meter.h"

namespace fastjax {

// Takes part in the meeting of the processes. Reused for later visits of the same call site.
template <typename Args>
class Job : public Guest {
 public:
  using Session = typename Rendezvous<Args>::Session;

  Job(std::shared_ptr<const Site> site, std::shared_ptr<Meter> meter)
      : site_(std::move(site)), meter_(std::move(meter)) {
    meeting_.guest = this;
  }

  const Site& site() const { return *site_; }
  int32_t group() const { return meeting_.key.group; }
  Meeting& meeting() { return meeting_; }
  std::vector<Args>& args() { return args_; }  // by position; of other processes once ReadMetadata has been called

  // On the thread of the last device to arrive: joins the meeting. `done` is called on the wire's thread when the
  // visit is over, and the job may then be reused.
  void Begin(Session* session, std::function<void()> done) {
    session_ = session;
    done_ = std::move(done);
    launch_ = meter_->Begin();
    bool named = false;
    const Status written = Guarded([&] {
      site_->Begin(session->run_id(), session->group(), &meeting_);
      named = true;
      args_.assign(session->args().begin(), session->args().end());
      WriteMetadata(*site_, session->group(), args_, &words_);
      site_->Write(words_, &meeting_);
      return Status::Ok();
    });
    if (!written.ok()) return EndAlone(written, named);
    const bool posted = site_->station().wire->Post([this] {
      FaultPoints::Get().AtMeet();
      site_->station().meetings.Join(&meeting_);
    });
    if (!posted) End(Status::Unavailable(meeting_.prefix + "the network of this process has been closed."));
  }

 protected:
  // Restarted once the processes have met.
  Launch* launch() { return &launch_; }
  bool metered() const { return launch_.metered; }
  // What it was about, if it ended well.
  virtual Seen seen() const = 0;
  // Leaves the meeting and lets the devices go.
  void Finish(const Status& status) {
    site_->station().meetings.Leave(&meeting_);
    End(status);
  }

 private:
  // Of a visit that the other processes know nothing of yet. They are told, if it can be said which it is.
  void EndAlone(const Status& why, bool named) {
    const bool posted = named && site_->station().wire->Post([this, why] {
      site_->station().meetings.StayAway(meeting_, why);
      End(why);
    });
    if (!posted) End(why);
  }

  void End(const Status& status) {
    meter_->End(launch_, status, status.ok() ? seen() : Seen{});
    Session* session = std::exchange(session_, nullptr);
    const auto done = std::move(done_);
    done_ = nullptr;
    session->Finish(status);
    done();
  }

  const std::shared_ptr<const Site> site_;
  const std::shared_ptr<Meter> meter_;
  Launch launch_;
  Meeting meeting_;
  std::vector<Args> args_;
  std::vector<int64_t> words_;
  Session* session_ = nullptr;
  std::function<void()> done_;
};

// Where the devices of this process arrive; what they do then is a job.
template <typename Args, typename OneJob>
class Entrance {
 public:
  using Make = std::function<std::unique_ptr<OneJob>(std::shared_ptr<const Site>, std::shared_ptr<Meter>)>;

  Entrance(std::shared_ptr<Station> station, const std::shared_ptr<const CallSite>& call_site, const std::string& what,
           std::shared_ptr<Meter> meter, Make make)
      : core_(std::make_shared<Core>(std::make_shared<const Site>(std::move(station), call_site, what),
                                     std::move(meter), std::move(make))),
        rendezvous_(Rendezvous<Args>::Create(
            call_site, [core = core_](auto* session, int32_t) { core->Begin(core, session); }, core_->site->process(),
            [core = core_](const auto& session, const Status& why) { core->StayAway(session, why); })) {}

  void Arrive(int64_t run_id, int32_t partition, Args args, Completion done) {
    const CallSite& site = core_->site->call_site();
    rendezvous_->Arrive(run_id, site.group_of[partition], site.position_of[partition], std::move(args),
                        std::move(done));
  }

  void Refuse(int64_t run_id, int32_t partition, const Status& why, Completion done) {
    const CallSite& site = core_->site->call_site();
    rendezvous_->Refuse(run_id, site.group_of[partition], site.position_of[partition], why, std::move(done));
  }

 private:
  struct Core {
    Core(std::shared_ptr<const Site> s, std::shared_ptr<Meter> f, Make m)
        : site(std::move(s)), meter(std::move(f)), make(std::move(m)) {}

    void Begin(const std::shared_ptr<Core>& self, typename Job<Args>::Session* session) {
      OneJob* job = nullptr;
      const Status taken = Guarded([&] {
        job = Take();
        return Status::Ok();
      });
      if (!taken.ok()) {
        static_cast<void>(Guarded([&] {
          StayAway(*session, taken);
          return Status::Ok();
        }));
        return session->Finish(taken);
      }
      job->Begin(session, [self, job] { self->Return(job); });
    }

    // The other processes need not wait until they think the same.
    void StayAway(const typename Job<Args>::Session& session, const Status& why) const {
      meter->Fail();
      auto meeting = std::make_shared<Meeting>();
      site->Begin(session.run_id(), session.group(), meeting.get());
      site->station().wire->Post([at = site, meeting, why] { at->station().meetings.StayAway(*meeting, why); });
    }

    OneJob* Take() {
      const std::lock_guard<std::mutex> lock(mutex);
      if (free.empty()) {
        free.reserve(jobs.size() + 1);  // returning one must not want memory
        jobs.push_back(make(site, meter));
        return jobs.back().get();
      }
      OneJob* job = free.back();
      free.pop_back();
      return job;
    }

    void Return(OneJob* job) {
      const std::lock_guard<std::mutex> lock(mutex);
      free.push_back(job);
    }

    const std::shared_ptr<const Site> site;
    const std::shared_ptr<Meter> meter;
    const Make make;
    std::mutex mutex;
    std::vector<std::unique_ptr<OneJob>> jobs;
    std::vector<OneJob*> free;
  };

  std::shared_ptr<Core> core_;
  std::shared_ptr<Rendezvous<Args>> rendezvous_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_JOB_H_
