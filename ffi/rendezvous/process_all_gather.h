// Gathers words from all processes of a group, for callers that can wait for the result.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_
#define FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "rendezvous/process_group.h"

namespace fastjax {

// Used once. Lives until Run has returned.
class ProcessAllGather final : public Participant {
 public:
  // `again`: the launch id is one of many attempts, of which those that were given up are left out.
  ProcessAllGather(ProcessGroup* process_group, std::vector<int64_t> words, bool again = false)
      : process_group_(process_group), words_(std::move(words)), again_(again) {
    process_session_.participant = this;
  }

  // To be given key, launch id, text, others, timeout and prefix.
  ProcessSession& process_session() { return process_session_; }
  // Must not be called on the wire's thread. `answers` are those of the others, in their order. Waits no longer than
  // the process session does.
  Status Run(std::vector<std::vector<int64_t>>* answers);
  // On the wire's thread, until Run has returned: ends it, here and for the others.
  void Cancel(const Status& why);

  void OnMet() override;
  void OnFailed(const Status& why) override { End(why); }
  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  void Join();
  void End(const Status& status);

  ProcessGroup* const process_group_;
  const std::vector<int64_t> words_;
  const bool again_;
  ProcessSession process_session_;
  std::vector<std::vector<int64_t>> answers_;
  enum class State : uint8_t { kPosted, kJoined, kEnded } state_ = State::kPosted;
  Status cancelled_;  // before it was joined
  const std::shared_ptr<std::promise<Status>> told_ = std::make_shared<std::promise<Status>>();
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_
