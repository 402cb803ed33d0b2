// One meeting in which processes swap words, for whoever can wait for it.
#ifndef FASTJAX_RENDEZVOUS_SWAP_H_
#define FASTJAX_RENDEZVOUS_SWAP_H_

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "rendezvous/site.h"

namespace fastjax {

// Used once. Lives until Run has returned.
class Swap final : public Guest {
 public:
  // `again`: the visit is one of many attempts, of which those that were given up are left out.
  Swap(Station* station, std::vector<int64_t> words, bool again = false)
      : station_(station), words_(std::move(words)), again_(again) {
    meeting_.guest = this;
  }

  // To be given key, visit, text, others, timeout and prefix.
  Meeting& meeting() { return meeting_; }
  // Not for the wire's thread. `answers`: of the others, in their order. Waits no longer than the meeting does.
  Status Run(std::vector<std::vector<int64_t>>* answers);
  // On the wire's thread, until Run has returned: ends it, here and for the others.
  void Cancel(const Status& why);

  void OnMet() override;
  void OnFailed(const Status& why) override { End(why); }
  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  void Join();
  void End(const Status& status);

  Station* const station_;
  const std::vector<int64_t> words_;
  const bool again_;
  Meeting meeting_;
  std::vector<std::vector<int64_t>> answers_;
  enum class State : uint8_t { kPosted, kJoined, kEnded } state_ = State::kPosted;
  Status cancelled_;  // before it was joined
  const std::shared_ptr<std::promise<Status>> told_ = std::make_shared<std::promise<Status>>();
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_SWAP_H_
