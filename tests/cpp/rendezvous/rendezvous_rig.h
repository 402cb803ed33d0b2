// A rendezvous of devices for tests: each brings who it is, and what meets is looked at.
#ifndef FASTJAX_TESTS_CPP_RENDEZVOUS_RENDEZVOUS_RIG_H_
#define FASTJAX_TESTS_CPP_RENDEZVOUS_RENDEZVOUS_RIG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "exchange/call_site.h"
#include "exchange/status.h"
#include "rendezvous/rendezvous.h"
#include "support/check.h"
#include "support/outcomes.h"

namespace fastjax::test {

// What a device brings: who it is and in which launch and repetition it thinks it is.
struct LaunchId {
  int64_t run_id = 0;
  int32_t repetition = 0;
  int32_t group = 0;
  int32_t position = 0;
};

using TestRendezvous = Rendezvous<LaunchId>;
using TestSession = TestRendezvous::Session;

// A rendezvous that calls functions.
class CallingRendezvous final : public TestRendezvous {
 public:
  using Action = std::function<void(TestSession*, int32_t last)>;
  using Failed = std::function<void(const TestSession&, const Status&)>;
  using Absent = std::function<void(int64_t run_id, int32_t group, const Status&)>;

  CallingRendezvous(const std::shared_ptr<CallSite>& site, Action action, int32_t process, Failed failed, Absent absent)
      : Rendezvous(site, process), action_(std::move(action)), failed_(std::move(failed)), absent_(std::move(absent)) {}

 private:
  void Execute(TestSession* session, int32_t last) override { action_(session, last); }
  void OnFailed(const TestSession& session, const Status& why) override {
    if (failed_) failed_(session, why);
  }
  void OnAbsent(int64_t run_id, int32_t group, const Status& why) override { absent_(run_id, group, why); }

  const Action action_;
  const Failed failed_;
  const Absent absent_;
};

inline std::shared_ptr<TestRendezvous> Create(const std::shared_ptr<CallSite>& site, CallingRendezvous::Action action,
                                              int32_t process = kAllProcesses,
                                              CallingRendezvous::Failed failed = nullptr,
                                              CallingRendezvous::Absent absent = nullptr) {
  return OpenRendezvous<CallingRendezvous>(site, std::move(action), process, std::move(failed), std::move(absent));
}

// A rendezvous that fails the operations of devices that should not have met.
inline std::shared_ptr<TestRendezvous> MakeRendezvous(const std::shared_ptr<CallSite>& site, std::atomic<int64_t>* met,
                                                      bool complete_here = true) {
  return Create(site, [=](TestSession* session, int32_t last) {
    const LaunchId& first = session->args().front();
    bool right = session->group() == first.group;
    for (int32_t p = 0; p < site->group_size; ++p) {
      const LaunchId& launch_id = session->args()[p];
      right = right && launch_id.position == p && launch_id.group == first.group && launch_id.run_id == first.run_id &&
              launch_id.repetition == first.repetition;
    }
    ++*met;
    session->Finish(right ? Status::Ok() : Status::Internal("met others"), complete_here ? last : -1);
  });
}

inline void Arrive(const std::shared_ptr<TestRendezvous>& rendezvous, const LaunchId& launch_id, Completion done) {
  const int32_t partition = rendezvous->site().partition(launch_id.group, launch_id.position);
  rendezvous->Start(launch_id.run_id, partition, launch_id, std::move(done));
}

// Arrives alone and expects to be told so before arriving returns.
inline Status ArriveLate(const std::shared_ptr<TestRendezvous>& rendezvous, const LaunchId& launch_id) {
  const Outcomes outcome(1);
  Arrive(rendezvous, launch_id, outcome.For(0));
  CHECK(outcome.called(0));
  if (outcome.called(0)) CHECK(outcome.thread(0) == std::this_thread::get_id());
  return outcome.status(0);
}

inline void Meet(const std::shared_ptr<TestRendezvous>& rendezvous, int64_t run_id, int32_t group, int32_t group_size) {
  const Outcomes outcomes(group_size);
  for (int32_t p = group_size - 1; p >= 0; --p) Arrive(rendezvous, {run_id, 0, group, p}, outcomes.For(p));
  outcomes.WaitAll();
  CHECK(outcomes.all_ok());
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_RENDEZVOUS_RENDEZVOUS_RIG_H_
