#include "rendezvous/swap.h"

#include <utility>

namespace fastjax {

Status Swap::Run(std::vector<std::vector<int64_t>>* answers) {
  std::future<Status> ended = told_->get_future();
  if (!station_->wire->Post([this] { Join(); })) {
    return Status::Unavailable(meeting_.prefix + "the network of this process has been closed.");
  }
  Status status = ended.get();  // not bounded here: the meeting is
  if (status.ok()) *answers = std::move(answers_);
  return status;
}

void Swap::Join() {
  if (state_ == State::kEnded) return told_->set_value(cancelled_);
  while (again_ && station_->meetings.IsGivenUp(meeting_.key, meeting_.visit)) ++meeting_.visit.round;
  Message message;
  message.key = meeting_.key;
  message.visit = meeting_.visit;
  message.text = meeting_.text;
  message.words = words_.data();
  message.num_words = static_cast<int64_t>(words_.size());
  Encode(message, &meeting_.bytes);
  state_ = State::kJoined;
  station_->meetings.Join(&meeting_);
}

void Swap::OnMet() {
  for (const auto& letter : meeting_.letters) {
    const Message& theirs = letter->message;
    answers_.emplace_back(theirs.words, theirs.words + theirs.num_words);
  }
  End(Status::Ok());
}

void Swap::Cancel(const Status& why) {
  if (state_ == State::kJoined) return station_->meetings.GiveUp(&meeting_, why);
  if (state_ == State::kPosted) cancelled_ = why;
  state_ = State::kEnded;
}

void Swap::End(const Status& status) {
  state_ = State::kEnded;
  station_->meetings.Leave(&meeting_);
  const auto told = told_;  // this may be gone as soon as the caller is told
  told->set_value(status);
}

}  // namespace fastjax
