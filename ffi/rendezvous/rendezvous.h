// Declares Rendezvous, where the devices of one process meet.
#ifndef FASTJAX_RENDEZVOUS_RENDEZVOUS_H_
#define FASTJAX_RENDEZVOUS_RENDEZVOUS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "rendezvous/failed_launches.h"
#include "runtime/completer.h"
#include "runtime/reused.h"
#include "runtime/watchdog.h"

namespace fastjax {

// Returns the error text for a group of which some members did not arrive in time. `members` is by partition.
std::string MissingDevices(const CallSite& site, const std::vector<bool>& members, int32_t group,
                           const std::vector<bool>& arrived);

// Returns the text for stderr when half of the time-out is over. Missing devices may wait for others in a collective of
// XLA's, which may end the process before the error is seen. It is not written where the time-out is short.
std::string StillMissing(const CallSite& site, const std::vector<bool>& members, int32_t group,
                         const std::vector<bool>& arrived);
void PrintToStderr(const std::string& text);
constexpr int64_t kLongTimeoutMs = 10'000;

// Counts devices, of all call sites, that have arrived at a rendezvous and have not been completed. A device still
// counts while the thread that completes it runs the rest of its program.
std::atomic<int64_t>& Unfinished();

// Called when the devices of this process have met for an exchange or a planning; returns its number, from 0. A launch
// of a lower number goes first wherever several compete for a NIC or a thread (docs/design/overview.md).
int64_t NextLaunch();

// Returns, by partition, whether the device is one of this process and so meets here. kAllProcesses: all do.
std::vector<bool> MembersOf(const CallSite& site, int32_t process);

// Gathers the arguments of every device of a group that this process has, for one call site of one executable. Calls
// are told apart by run id and group, and repeated ones (a loop) by their order: a device joins the oldest gathering
// that it is not part of yet, and every device runs the repetitions of one call site in the same order.
//
// No thread blocks: Start returns at once, and the thread of the last device to arrive executes the operation for all.
//
// A device that cannot take part arrives as well, and gives the reason. It fails together with the others, when all
// have arrived: XLA may end the process if one device's program fails long before another's.
//
// A device that has failed, here or at another call site, begins no more calls in this run. Devices that wait for it,
// and those that come later, fail at once with the first error of that device.
//
// What is executed is a subclass. OpenRendezvous makes it; it lives as long as it has sessions.
template <typename Args>
class Rendezvous : public Operation<Args>,
                   public Expirable,
                   public FailureListener,
                   public std::enable_shared_from_this<Rendezvous<Args>> {
 public:
  class Session {
   public:
    int32_t group() const { return group_; }
    int64_t run_id() const { return run_id_; }
    const std::vector<Args>& args() const { return args_; }  // by position

    // Of ranks that one device executes, whose completions wait for nothing: the caller's thread completes all. No
    // other call site is told of a failure: in place of XLA's run id, such a call has a number that no other call has.
    static constexpr int32_t kAllHere = -2;
    // Ends the operation for every device of the group; the session must not be used afterwards. Each device is
    // completed from a thread of its own, but `here` (a position, kAllHere, or -1: none), which the caller's completes.
    void Finish(const Status& status, int32_t here = -1) { owner_->FinishSession(this, status, here); }

   private:
    friend class Rendezvous;
    std::shared_ptr<Rendezvous> owner_;
    int64_t run_id_ = 0;
    int32_t group_ = 0;
    int32_t missing_ = 0;
    std::chrono::steady_clock::time_point deadline_;
    bool warned_ = false;  // whether the text for stderr has been written
    Status refusal_;       // of the first device that cannot take part
    std::vector<Args> args_;
    std::vector<bool> arrived_;
    std::vector<Completion> completions_;
  };

  const CallSite& site() const { return *site_; }

  void Start(int64_t run_id, int32_t partition, Args args, Completion done) final {
    Enter(run_id, partition, std::move(args), Status::Ok(), std::move(done));
  }

  void FailGroup(int64_t run_id, int32_t partition, const Status& why, Completion done) final {
    const std::string who = site_->DeviceName(site_->group_of[partition], site_->position_of[partition]);
    Enter(run_id, partition, Args{}, {why.code, site_->Prefix() + who + " cannot take part: " + why.message},
          std::move(done));
  }

  // From now on it hears of time, and of launches that fail elsewhere.
  void Watch() {
    launches_->Add(this->weak_from_this());
    Watchdog::Get().Watch(this->shared_from_this());
  }

  bool Expire(std::chrono::steady_clock::time_point now) override {
    std::vector<Session*> due;
    std::vector<std::string> missing;
    bool waiting = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      due = TakeOpen([&](const Session& session) { return session.deadline_ <= now; });
      waiting = !open_.empty();
      for (Session* session : open_) {
        if (!IsHalfWay(*session, now)) continue;
        session->warned_ = true;
        missing.push_back(StillMissing(*site_, members_, session->group_, session->arrived_));
      }
    }
    for (Session* session : due) FailSession(session, Late(*session), -1);
    for (const std::string& text : missing) PrintToStderr(text);
    return waiting;
  }

  void OnFailedLaunch(const FailedLaunch& launch) override {
    std::vector<Session*> in_vain;
    std::vector<int32_t> absent;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      in_vain = TakeOpen([&](const Session& session) {
        return session.run_id_ == launch.run_id && WhyInVain(session.group_, &session, launch) != nullptr;
      });
      for (int32_t group = 0; group < site_->groups() && between_processes_; ++group) {
        if (WhyInVain(group, nullptr, launch) == nullptr || FindOpen(launch.run_id, group) != nullptr) continue;
        if (AddEnded(launch.run_id, group)) absent.push_back(group);
      }
    }
    for (Session* session : in_vain) FailSession(session, *WhyInVain(session->group_, session, launch), -1);
    for (const int32_t group : absent) {
      static_cast<void>(Guarded([&] { OnAbsent(launch.run_id, group, *WhyInVain(group, nullptr, launch)); }));
    }
  }

 protected:
  // `process`: whose devices meet here; others tell the other processes of what fails.
  explicit Rendezvous(std::shared_ptr<const CallSite> site, int32_t process = kAllProcesses)
      : site_(std::move(site)),
        between_processes_(process != kAllProcesses),
        members_(MembersOf(*site_, process)),
        launches_(FailedLaunches::Of(*site_, process)) {
    expected_.resize(site_->groups());
    for (int32_t p = 0; p < site_->partitions(); ++p) expected_[site_->group_of[p]] += members_[p] ? 1 : 0;
  }

  // Called on the thread of the last device to arrive, whose position is `last`. Finishes the session, then or later.
  virtual void Execute(Session* session, int32_t last) = 0;
  // Called in its place where devices do not arrive, or cannot take part, before they are told.
  virtual void OnFailed(const Session& session, const Status& why) = 0;
  // Called, between processes, once for a run and group that had no session when devices failed elsewhere: no more is
  // to come here.
  virtual void OnAbsent(int64_t /*run_id*/, int32_t /*group*/, const Status& /*why*/) {}

 private:
  static constexpr size_t kEndedKept = 256;

  void Enter(int64_t run_id, int32_t partition, Args args, Status refusal, Completion done) {
    const int32_t group = site_->group_of[partition];
    const int32_t position = site_->position_of[partition];
    Session* session = nullptr;
    std::shared_ptr<const Status> in_vain;
    Completion refused;
    bool opened = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      session = FindOpen(run_id, group, position);
      if (const auto failed = launches_->Find(this->weak_from_this(), run_id); failed != nullptr) {
        // Where the others have been told that no more is to come, nobody waits for this device either.
        const bool over = session == nullptr && HasEnded(run_id, group);
        in_vain = WhyInVain(group, session, *failed, over ? -1 : position);
      }
      if (in_vain != nullptr) {
        refused = std::move(done);
      } else {
        if (session == nullptr) {
          session = Open(run_id, group);
          opened = true;
        }
        session->args_[position] = std::move(args);
        session->completions_[position] = std::move(done);
        session->arrived_[position] = true;
        if (session->refusal_.ok()) session->refusal_ = std::move(refusal);
        Unfinished().fetch_add(1);
        if (--session->missing_ > 0) {
          session = nullptr;
        } else {
          open_.erase(std::find(open_.begin(), open_.end(), session));
        }
      }
    }
    if (opened) Watchdog::Get().Touch();
    if (in_vain != nullptr) {
      launches_->TellCallSites(this->weak_from_this(), run_id, {partition}, *in_vain);
      refused(*in_vain);
    } else if (session != nullptr) {
      // The operation may complete the device that holds the last other reference.
      const auto alive = this->shared_from_this();
      if (session->refusal_.ok()) {
        Execute(session, position);
      } else {
        FailSession(session, Status(session->refusal_), position);
      }
    }
  }

  // Ends the operation of a session that is not open any more and has not been executed.
  void FailSession(Session* session, const Status& why, int32_t here) {
    static_cast<void>(Guarded([&] { OnFailed(*session, why); }));
    session->Finish(why, here);
  }

  // Returns the error of a session whose time is up. What kept a device from taking part comes first, and may be why
  // others are missing.
  Status Late(const Session& session) const {
    const std::string missing = MissingDevices(*site_, members_, session.group_, session.arrived_);
    const Status& first = session.refusal_;
    return first.ok() ? Status::Deadline(missing) : Status{first.code, first.message + " Besides: " + missing};
  }

  bool IsHalfWay(const Session& session, std::chrono::steady_clock::time_point now) const {
    return site_->timeout_ms >= kLongTimeoutMs && !session.warned_ &&
           session.deadline_ - now <= std::chrono::milliseconds(site_->timeout_ms / 2);
  }

  // Returns the error of a device of this process that the group waits for in vain, since it has failed, or null.
  // `session` is null where no device has arrived; `here` is the position of one that arrives now.
  std::shared_ptr<const Status> WhyInVain(int32_t group, const Session* session, const FailedLaunch& launch,
                                          int32_t here = -1) const {
    for (int32_t position = 0; position < site_->group_size; ++position) {
      const int32_t partition = site_->partition(group, position);
      if (position == here || !members_[partition]) continue;
      if (session != nullptr && session->arrived_[position]) continue;
      if (auto why = launch.Why(partition); why != nullptr) return why;
    }
    return nullptr;
  }

  bool HasEnded(int64_t run_id, int32_t group) const {
    const std::pair<int64_t, int32_t> ended{run_id, group};
    return std::find(ended_.begin(), ended_.end(), ended) != ended_.end();
  }

  // The other processes are told that no more of the group is to come in this run. False if they have been told.
  bool AddEnded(int64_t run_id, int32_t group) {
    if (HasEnded(run_id, group)) return false;
    ended_.emplace_back(run_id, group);
    if (ended_.size() > kEndedKept) ended_.pop_front();
    return true;
  }

  // Returns the open sessions that the condition is true for, oldest first, which are to fail and are open no more.
  template <typename Condition>
  std::vector<Session*> TakeOpen(Condition condition) {
    std::vector<Session*> taken;
    const auto left =
        std::stable_partition(open_.begin(), open_.end(), [&](const Session* session) { return !condition(*session); });
    taken.assign(left, open_.end());
    open_.erase(left, open_.end());
    for (const Session* session : taken) AddEnded(session->run_id_, session->group_);
    return taken;
  }

  // Returns the oldest session, or the oldest that the device of a position is not part of yet, or null.
  Session* FindOpen(int64_t run_id, int32_t group, int32_t position = -1) const {
    for (Session* session : open_) {
      const bool same = session->run_id_ == run_id && session->group_ == group;
      if (same && (position < 0 || !session->arrived_[position])) return session;
    }
    return nullptr;
  }

  Session* Open(int64_t run_id, int32_t group) {
    Session* const session = sessions_.Take();
    session->owner_ = this->shared_from_this();
    session->run_id_ = run_id;
    session->group_ = group;
    session->missing_ = expected_[group];
    session->warned_ = false;
    session->refusal_ = Status::Ok();
    session->deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(site_->timeout_ms);
    session->args_.assign(site_->group_size, Args{});
    session->arrived_.assign(site_->group_size, false);
    session->completions_.resize(site_->group_size);
    open_.push_back(session);
    return session;
  }

  // Devices of the session fail: whoever waits for them elsewhere need not.
  void TellCallSites(const Session& session, const Status& why) {
    static_cast<void>(Guarded([&] {
      std::vector<int32_t> partitions;
      for (int32_t position = 0; position < site_->group_size; ++position) {
        if (session.completions_[position] != nullptr) partitions.push_back(site_->partition(session.group_, position));
      }
      launches_->TellCallSites(this->weak_from_this(), session.run_id_, partitions, why);
    }));
  }

  void FinishSession(Session* session, const Status& status, int32_t here) {
    const auto keep_alive = std::move(session->owner_);
    if (!status.ok() && here != Session::kAllHere) TellCallSites(*session, status);
    const auto complete = [&status](const Completion& done) {
      done(status);
      Unfinished().fetch_sub(1);
    };
    const auto shared = status.ok() ? nullptr : std::make_shared<const Status>(status);
    Completion own;  // may run the rest of a program, which needs sessions
    for (size_t p = 0; p < session->completions_.size(); ++p) {
      Completion done = std::exchange(session->completions_[p], nullptr);
      if (done == nullptr) continue;
      if (here == Session::kAllHere) {
        complete(done);
      } else if (static_cast<int32_t>(p) == here) {
        own = std::move(done);
      } else {
        Completer::Get().Run([done = std::move(done), shared] {
          done(shared == nullptr ? Status::Ok() : *shared);
          Unfinished().fetch_sub(1);
        });
      }
    }
    sessions_.Return(session);
    if (own != nullptr) complete(own);
  }

  const std::shared_ptr<const CallSite> site_;
  const bool between_processes_;
  const std::vector<bool> members_;  // by partition
  const std::shared_ptr<FailedLaunches> launches_;
  std::vector<int32_t> expected_;  // by group: the number of members
  std::mutex mutex_;
  std::vector<Session*> open_;  // oldest first
  Reused<Session> sessions_;
  std::deque<std::pair<int64_t, int32_t>> ended_;  // runs and groups of which the other processes have been told
};

template <typename Operation, typename... Arguments>
std::shared_ptr<Operation> OpenRendezvous(Arguments&&... arguments) {
  auto rendezvous = std::make_shared<Operation>(std::forward<Arguments>(arguments)...);
  rendezvous->Watch();
  return rendezvous;
}

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_RENDEZVOUS_H_
