// Declares FailedLaunches, by which call sites of a program hear of devices that have failed at another one: nobody
// need wait for those.
#ifndef FASTJAX_RENDEZVOUS_FAILED_LAUNCHES_H_
#define FASTJAX_RENDEZVOUS_FAILED_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax {

// In place of a process's number: devices of all processes meet in one.
constexpr int32_t kAllProcesses = -1;

// A launch in which devices have failed. XLA runs no more of a device's program then: whatever call such a device has
// not reached, it will not reach.
struct FailedLaunch {
  int64_t run_id = 0;
  std::vector<std::shared_ptr<const Status>> errors;  // by partition: the first, which names its call site; or null

  // Returns why a device has failed, or null.
  std::shared_ptr<const Status> Why(int32_t partition) const {
    const auto at = static_cast<size_t>(partition);
    return at < errors.size() ? errors[at] : nullptr;
  }
};

class FailureListener {
 public:
  virtual ~FailureListener() = default;
  // More devices of the launch have failed. Called without any lock.
  virtual void OnFailedLaunch(const FailedLaunch& launch) = 0;
};

// The failed launches of all programs of one name that this process has compiled. XLA gives each launch of a process
// its own number, also where programs are equal. Thread-safe.
class FailedLaunches {
 public:
  // Those of the call site's program. `process`: this one's number in the job. Tests have several in one.
  static std::shared_ptr<FailedLaunches> Of(const CallSite& site, int32_t process);

  // To be called when a call site is opened. It knows of launches that fail from now on: earlier ones are of other
  // executables.
  void Add(const std::weak_ptr<FailureListener>& call_site);

  // Returns the launch as a call site knows it, or null if it has not failed.
  std::shared_ptr<const FailedLaunch> Find(const std::weak_ptr<FailureListener>& call_site, int64_t run_id);

  // These devices of a launch fail at a call site. Tells all of the program, if that is new. To be called without any
  // lock, before the devices are told.
  void TellCallSites(const std::weak_ptr<FailureListener>& call_site, int64_t run_id,
                     const std::vector<int32_t>& partitions, const Status& why);

 private:
  static constexpr size_t kKept = 64;  // more launches than are in flight

  using Listeners = std::vector<std::weak_ptr<FailureListener>>;
  struct Failed {
    std::shared_ptr<const FailedLaunch> launch;
    Listeners listeners;  // when it began to fail
  };

  Failed* FindFailed(const std::weak_ptr<FailureListener>& call_site, int64_t run_id);

  std::mutex mutex_;
  Listeners listeners_;
  std::deque<Failed> failed_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_FAILED_LAUNCHES_H_
