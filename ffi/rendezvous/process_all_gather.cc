#include "rendezvous/process_all_gather.h"

#include <utility>

namespace fastjax {

Status ProcessAllGather::Run(std::vector<std::vector<int64_t>>* answers) {
  std::future<Status> ended = told_->get_future();
  if (!process_group_->transport->Post([this] { Join(); })) {
    return Status::Unavailable(process_session_.prefix + "the network of this process has been closed.");
  }
  Status status = ended.get();  // bounded by the time-out of the process session
  if (status.ok()) *answers = std::move(answers_);
  return status;
}

void ProcessAllGather::Join() {
  while (process_group_->rendezvous.IsGivenUp(process_session_.key, process_session_.launch_id))
    ++process_session_.launch_id.repetition;
  ProcessMetadata message;
  message.key = process_session_.key;
  message.launch_id = process_session_.launch_id;
  message.text = process_session_.text;
  message.words = words_.data();
  message.num_words = static_cast<int64_t>(words_.size());
  Encode(message, &process_session_.bytes);
  process_group_->rendezvous.Join(&process_session_);
}

void ProcessAllGather::OnMet() {
  for (const auto& message : process_session_.messages) {
    const ProcessMetadata& theirs = message->metadata;
    answers_.emplace_back(theirs.words, theirs.words + theirs.num_words);
  }
  End(Status::Ok());
}

void ProcessAllGather::End(const Status& status) {
  process_group_->rendezvous.Leave(&process_session_);
  const auto told = told_;  // `this` may be destroyed as soon as the caller is told
  told->set_value(status);
}

}  // namespace fastjax
