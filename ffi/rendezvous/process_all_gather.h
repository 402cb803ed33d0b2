// Declares ProcessAllGather, which gathers words from all processes of a group for a thread that waits for them.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_
#define FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "rendezvous/process_group.h"

namespace fastjax {

// One gathering. It must live until Run has returned.
class ProcessAllGather final : public Participant {
 public:
  // There may be many attempts with one launch id; those that were given up do not count.
  ProcessAllGather(ProcessGroup* process_group, std::vector<int64_t> words)
      : process_group_(process_group), words_(std::move(words)) {
    process_session_.participant = this;
  }

  // The caller sets key, launch id, text, others, timeout and prefix before Run.
  ProcessSession& process_session() { return process_session_; }
  // Gathers. `answers` are the words of the others, in their order. Waits no longer than the process session does. Must
  // not be called on the transport's thread.
  Status Run(std::vector<std::vector<int64_t>>* answers);

  void OnMet() override;
  void OnFailed(const Status& why) override { End(why); }

 private:
  void Join();
  void End(const Status& status);

  ProcessGroup* const process_group_;
  const std::vector<int64_t> words_;
  ProcessSession process_session_;
  std::vector<std::vector<int64_t>> answers_;
  const std::shared_ptr<std::promise<Status>> told_ = std::make_shared<std::promise<Status>>();
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_ALL_GATHER_H_
