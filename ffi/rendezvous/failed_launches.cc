#include "rendezvous/failed_launches.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "runtime/job_network.h"
#include "runtime/process_state.h"

namespace fastjax {
namespace {

struct Programs {
  std::mutex mutex;
  std::map<std::pair<std::string, int32_t>, std::weak_ptr<FailedLaunches>> known;
};

template <typename Container, typename Condition>
void EraseIf(Container* container, Condition condition) {
  for (auto at = container->begin(); at != container->end();)
    at = condition(*at) ? container->erase(at) : std::next(at);
}

}  // namespace

std::shared_ptr<FailedLaunches> FailedLaunches::Of(const CallSite& site, int32_t process) {
  // A program may have call sites between processes and others inside of each.
  const auto transport = process == kAllProcesses ? TheTransport() : nullptr;
  if (transport != nullptr) process = transport->process();
  auto& programs = ProcessState<Programs>();
  const std::lock_guard<std::mutex> lock(programs.mutex);
  EraseIf(&programs.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<FailedLaunches>& known = programs.known[{site.program, process}];
  auto of = known.lock();
  if (of == nullptr) known = of = std::make_shared<FailedLaunches>();
  return of;
}

void FailedLaunches::Add(const std::weak_ptr<FailureListener>& call_site) {
  const std::lock_guard<std::mutex> lock(mutex_);
  EraseIf(&listeners_, [](const auto& old) { return old.expired(); });
  listeners_.push_back(call_site);
}

std::shared_ptr<const FailedLaunch> FailedLaunches::Find(const std::weak_ptr<FailureListener>& call_site,
                                                         int64_t run_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Failed* const failed = FindFailed(call_site, run_id);
  return failed == nullptr ? nullptr : failed->launch;
}

FailedLaunches::Failed* FailedLaunches::FindFailed(const std::weak_ptr<FailureListener>& call_site, int64_t run_id) {
  const auto is_call_site = [&](const auto& listener) {
    return !listener.owner_before(call_site) && !call_site.owner_before(listener);
  };
  for (Failed& of : failed_) {
    if (of.launch->run_id != run_id) continue;
    if (std::any_of(of.listeners.begin(), of.listeners.end(), is_call_site)) return &of;
  }
  return nullptr;
}

void FailedLaunches::TellCallSites(const std::weak_ptr<FailureListener>& call_site, int64_t run_id,
                                   const std::vector<int32_t>& partitions, const Status& why) {
  std::shared_ptr<const FailedLaunch> launch;
  Listeners listeners;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Failed* failed = FindFailed(call_site, run_id);
    if (failed == nullptr) {
      failed_.push_back({std::make_shared<const FailedLaunch>(FailedLaunch{run_id, {}}), listeners_});
      if (failed_.size() > kKept) failed_.pop_front();
      failed = &failed_.back();
    }
    auto next = std::make_shared<FailedLaunch>(*failed->launch);
    const auto error = std::make_shared<const Status>(why);
    bool news = false;
    for (const int32_t partition : partitions) {
      const auto place = static_cast<size_t>(partition);
      if (place >= next->errors.size()) next->errors.resize(place + 1);
      if (next->errors[place] != nullptr) continue;
      next->errors[place] = error;
      news = true;
    }
    if (!news) return;
    failed->launch = launch = std::move(next);
    listeners = failed->listeners;
  }
  for (const std::weak_ptr<FailureListener>& listener : listeners) {
    if (const auto alive = listener.lock(); alive != nullptr) alive->OnFailedLaunch(*launch);
  }
}

}  // namespace fastjax
