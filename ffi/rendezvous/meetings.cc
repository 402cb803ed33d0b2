#include "rendezvous/meetings.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "rendezvous/visits.h"

namespace fastjax {
namespace {

// Longer than anybody is late, as a rule: whoever is later waits as long as for one who never comes.
constexpr std::chrono::minutes kGivenUpKept{10};
constexpr size_t kMostGivenUp = 4096;

constexpr size_t kLettersKept = 256;
constexpr size_t kWordsKept = 4096;

std::string Seconds(std::chrono::milliseconds time) {
  return std::to_string(time.count() / 1000) + "." + std::to_string(time.count() % 1000 / 100) + " s";
}

constexpr char kSameProgram[] = " Every process must run the same program, with the same arguments.";

}  // namespace

void Meetings::Join(Meeting* meeting) {
  meeting->letters.clear();
  meeting->letters.resize(meeting->others.size());
  meeting->met = meeting->failed = meeting->probed = false;
  meeting->deadline = std::chrono::steady_clock::now() + meeting->timeout;
  joined_.push_back(meeting);
  if (!closed_.ok()) return LoseFrom(meeting, kNobody, closed_);
  if (const GivenUp* old = Recall(meeting->key, meeting->visit); old != nullptr) {
    return FailQuietly(meeting, GaveUp(*meeting, *old));
  }
  for (const int32_t process : meeting->others) {
    wire_->SendMessage(process, meeting->bytes.data(), meeting->bytes.size());
  }
  for (size_t place = 0; place < meeting->others.size(); ++place) {
    const auto process = static_cast<size_t>(meeting->others[place]);
    if (process >= early_.size()) continue;
    auto& letters = early_[process];
    const auto found = std::find_if(letters.begin(), letters.end(), [&](const std::unique_ptr<Letter>& letter) {
      return letter->message.key == meeting->key && SameVisit(letter->message.visit, meeting->visit);
    });
    if (found == letters.end()) continue;
    std::unique_ptr<Letter> letter = std::move(*found);
    letters.erase(found);
    if (!Accept(meeting, place, std::move(letter))) return;
  }
  BeginIfMet(meeting);
}

void Meetings::Leave(Meeting* meeting) {
  joined_.erase(std::remove(joined_.begin(), joined_.end(), meeting), joined_.end());
  for (auto& letter : meeting->letters) {
    if (letter != nullptr) PutAway(std::move(letter));
  }
  meeting->letters.clear();
}

void Meetings::GiveUp(Meeting* meeting, const Status& why) { Fail(meeting, why); }

void Meetings::FailAlike(Meeting* meeting, const Status& why) {
  if (!meeting->failed) FailQuietly(meeting, why);
}

void Meetings::StayAway(const Meeting& meeting, const Status& why) { TellAll(meeting, why); }

void Meetings::Fail(Meeting* meeting, const Status& why, int32_t lost) {
  if (meeting->failed) return;
  TellAll(*meeting, why, lost);
  FailQuietly(meeting, why);
}

void Meetings::TellAll(const Meeting& meeting, const Status& why, int32_t lost) {
  GivenUp given_up{meeting.key, meeting.visit, why.message, wire_->process()};
  for (const int32_t process : meeting.others) {
    if (process != lost) Tell(process, given_up);
  }
  Remember(std::move(given_up));
}

// A connection that was cut off recovers slowly: the next exchange begins with another.
void Meetings::FailQuietly(Meeting* meeting, const Status& why) {
  meeting->failed = true;
  ForEachMissing(*meeting, [this](int32_t process) {
    if (wire_->Silent(process)) wire_->Disconnect(process);
  });
  meeting->guest->OnFailed(why);
}

void Meetings::Tell(int32_t process, const GivenUp& given_up) {
  Message message;
  message.kind = Kind::kGiveUp;
  message.key = given_up.key;
  message.visit = given_up.visit;
  message.text = given_up.text;
  Encode(message, &scratch_);
  wire_->SendMessage(process, scratch_.data(), scratch_.size());
}

// And forgets the letters of those who had come.
void Meetings::Remember(GivenUp given_up) {
  const auto stale = [&](const std::unique_ptr<Letter>& letter) {
    return letter->message.key == given_up.key && SameVisit(letter->message.visit, given_up.visit);
  };
  for (size_t process = 0; process < early_.size(); ++process) {
    auto& letters = early_[process];
    const auto theirs = std::find_if(letters.begin(), letters.end(), stale);
    if (theirs == letters.end()) continue;
    if (static_cast<int32_t>(process) == given_up.by) given_up.call = (*theirs)->message.text;
    letters.erase(std::remove_if(letters.begin(), letters.end(), stale), letters.end());
  }
  const auto now = given_up.at;
  given_up_.push_back(std::move(given_up));
  while (given_up_.size() > kMostGivenUp || now - given_up_.front().at > kGivenUpKept) given_up_.pop_front();
}

const Meetings::GivenUp* Meetings::Recall(const Key& key, const Visit& visit) const {
  for (const GivenUp& old : given_up_) {
    if (old.key == key && SameVisit(old.visit, visit)) return &old;
  }
  return nullptr;
}

std::unique_ptr<Letter> Meetings::TakeLetter() {
  if (free_.empty()) return std::make_unique<Letter>();
  std::unique_ptr<Letter> letter = std::move(free_.back());
  free_.pop_back();
  return letter;
}

void Meetings::PutAway(std::unique_ptr<Letter> letter) {
  if (free_.size() < kLettersKept && letter->memory.capacity() <= kWordsKept) free_.push_back(std::move(letter));
}

void Meetings::OnMessage(int32_t process, const std::byte* data, size_t bytes) {
  std::unique_ptr<Letter> letter = TakeLetter();
  letter->memory.resize((bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (bytes > 0) std::memcpy(letter->memory.data(), data, bytes);
  if (!Decode(reinterpret_cast<const std::byte*>(letter->memory.data()), bytes, &letter->message)) {
    return OnLost(process, Status::Internal(wire_->Describe(process) +
                                            " sent a message that is none of fastjax's; do all processes run the "
                                            "same version?"));
  }
  if (letter->message.kind != Kind::kGiveUp) return Receive(process, std::move(letter));
  OnGiveUp(process, letter->message);
  PutAway(std::move(letter));
}

Meeting* Meetings::Find(int32_t process, const Message& message) const {
  for (Meeting* meeting : joined_) {
    if (meeting->failed || !(meeting->key == message.key) || !SameVisit(meeting->visit, message.visit)) continue;
    if (std::find(meeting->others.begin(), meeting->others.end(), process) != meeting->others.end()) return meeting;
  }
  return nullptr;
}

void Meetings::Receive(int32_t process, std::unique_ptr<Letter> letter) {
  if (Meeting* meeting = Find(process, letter->message); meeting != nullptr) {
    const auto place = std::find(meeting->others.begin(), meeting->others.end(), process) - meeting->others.begin();
    if (Accept(meeting, static_cast<size_t>(place), std::move(letter))) BeginIfMet(meeting);
    return;
  }
  // Whoever gave up has told everybody, but for those who told it.
  if (const GivenUp* old = Recall(letter->message.key, letter->message.visit); old != nullptr) {
    if (old->by == wire_->process()) Tell(process, *old);
    return PutAway(std::move(letter));
  }
  if (letter->message.kind == Kind::kMeetAnswer) return PutAway(std::move(letter));  // nobody asks anymore
  if (static_cast<size_t>(process) >= early_.size()) early_.resize(static_cast<size_t>(process) + 1);
  auto& letters = early_[static_cast<size_t>(process)];
  for (const std::unique_ptr<Letter>& other : letters) {
    const bool same = letter->message.kind == Kind::kMeetAgain && other->message.key == letter->message.key &&
                      SameVisit(other->message.visit, letter->message.visit);
    if (same) return PutAway(std::move(letter));
  }
  letters.push_back(std::move(letter));
}

bool Meetings::Accept(Meeting* meeting, size_t place, std::unique_ptr<Letter> letter) {
  const Message& theirs = letter->message;
  const auto who = [&] { return wire_->Describe(meeting->others[place]); };
  const auto refuse = [&](const Status& why) {
    Fail(meeting, why);
    return false;
  };
  if (theirs.text != meeting->text) {
    return refuse(Status::Invalid(meeting->prefix + "the program of " + who() + " differs: here, " + meeting->text +
                                  "; there, " + std::string(theirs.text) + "." + kSameProgram));
  }
  if (theirs.settings != meeting->settings) {
    return refuse(Status::Invalid(
        meeting->prefix + who() +
        " plans with another topology, scheduler or row size; fastjax.options, FASTJAX_SCHEDULER and the "
        "calibration of the machine must be the same in every process."));
  }
  if (meeting->letters[place] != nullptr) {
    if (theirs.kind == Kind::kMeetAgain) SendAgain(*meeting, meeting->others[place], Kind::kMeetAnswer);
    if (theirs.kind != Kind::kMeet) return false;
    return refuse(Status::Internal(meeting->prefix + who() + " came twice to one exchange."));
  }
  meeting->letters[place] = std::move(letter);
  return true;
}

void Meetings::BeginIfMet(Meeting* meeting) {
  for (const auto& letter : meeting->letters) {
    if (letter == nullptr) return;
  }
  meeting->met = true;
  meeting->guest->OnMet();
}

void Meetings::OnGiveUp(int32_t process, const Message& message) {
  GivenUp given_up{message.key, message.visit, std::string(message.text), process};
  Meeting* meeting = Find(process, message);
  const Status why = meeting == nullptr ? Status::Ok() : GaveUp(*meeting, given_up);
  Remember(std::move(given_up));
  if (meeting != nullptr) FailQuietly(meeting, why);
}

Status Meetings::GaveUp(const Meeting& meeting, const GivenUp& given_up) const {
  return Status::Unavailable(meeting.prefix + wire_->Describe(given_up.by) + " gave up: " + given_up.text);
}

void Meetings::OnLost(int32_t process, const Status& status) {
  if (static_cast<size_t>(process) < early_.size()) early_[static_cast<size_t>(process)].clear();
  ForEachJoined([&](Meeting* meeting) {
    if (std::find(meeting->others.begin(), meeting->others.end(), process) == meeting->others.end()) return;
    LoseFrom(meeting, process, status);
  });
}

void Meetings::LoseFrom(Meeting* meeting, int32_t process, const Status& status) {
  const Status why{status.code, meeting->prefix + status.message};
  Fail(meeting, meeting->met ? meeting->guest->Explain(why) : why, process);
}

void Meetings::OnRenewed(int32_t process, const Status& why) {
  ForEachJoined([&](Meeting* meeting) {
    const auto place = std::find(meeting->others.begin(), meeting->others.end(), process) - meeting->others.begin();
    if (meeting->failed || static_cast<size_t>(place) == meeting->others.size()) return;
    if (meeting->letters[static_cast<size_t>(place)] == nullptr) return SendAgain(*meeting, process, Kind::kMeetAgain);
    // They gave up rows, of this exchange perhaps.
    if (meeting->met && !why.ok()) LoseFrom(meeting, process, why);
  });
}

void Meetings::SendAgain(const Meeting& meeting, int32_t process, Kind kind) {
  scratch_ = meeting.bytes;
  SetKind(kind, &scratch_);
  wire_->SendMessage(process, scratch_.data(), scratch_.size());
}

void Meetings::OnTick(std::chrono::steady_clock::time_point now) {
  ForEachJoined([&](Meeting* meeting) {
    if (meeting->met) return meeting->guest->OnTick(now);
    if (!meeting->failed) Await(meeting, now);
  });
}

void Meetings::Await(Meeting* meeting, std::chrono::steady_clock::time_point now) {
  if (now >= meeting->deadline) return Fail(meeting, Status::Deadline(meeting->prefix + Missing(*meeting)));
  if (meeting->probed || now < meeting->deadline - meeting->timeout / 2) return;
  meeting->probed = true;
  ForEachMissing(*meeting, [this](int32_t process) { wire_->Probe(process); });
}

void Meetings::OnClosed(const Status& why) {
  closed_ = why;
  ForEachJoined([&](Meeting* meeting) { LoseFrom(meeting, kNobody, why); });
}

template <typename Visit>
void Meetings::ForEachMissing(const Meeting& meeting, Visit visit) {
  for (size_t place = 0; place < meeting.letters.size(); ++place) {
    if (meeting.letters[place] == nullptr) visit(meeting.others[place]);
  }
}

// visit may have meetings left, also others than its own.
template <typename Visit>
void Meetings::ForEachJoined(Visit visit) {
  const std::vector<Meeting*> joined = joined_;
  for (Meeting* meeting : joined) {
    if (std::find(joined_.begin(), joined_.end(), meeting) != joined_.end()) visit(meeting);
  }
}

// What is known of a process that did not come.
std::string Meetings::Whereabouts(const Meeting& meeting, size_t process) const {
  if (process < early_.size() && !early_[process].empty()) {
    const Message& theirs = early_[process].back()->message;
    if (theirs.key == meeting.key) return " (which is at another launch of it)";
    return " (which is at another call: " + std::string(theirs.text) + ")";
  }
  // It may have waited a little longer than we have.
  const auto since = meeting.deadline - meeting.timeout;
  for (auto old = given_up_.rbegin(); old != given_up_.rend() && old->at >= since; ++old) {
    if (old->by != static_cast<int32_t>(process) || old->call.empty()) continue;
    if (old->key == meeting.key) return " (which was at another launch of it, and gave that up)";
    return " (which was at another call, and gave that up: " + old->call + ")";
  }
  return "";
}

// Who did not come, and what is known of them.
std::string Meetings::Missing(const Meeting& meeting) const {
  std::string text = "waited " + Seconds(meeting.timeout) + " for ";
  bool elsewhere = false;
  bool first = true;
  for (size_t place = 0; place < meeting.others.size(); ++place) {
    if (meeting.letters[place] != nullptr) continue;
    const auto process = static_cast<size_t>(meeting.others[place]);
    text += (first ? "" : ", ") + wire_->Describe(meeting.others[place]);
    first = false;
    const std::string where = Whereabouts(meeting, process);
    text += where;
    elsewhere = elsewhere || !where.empty();
  }
  text += ", which did not reach this call: " + meeting.text + ".";
  if (elsewhere) return text + kSameProgram;
  return text +
         " Look for a process that died, stopped or runs another program; if it is only slow, raise the limit "
         "with fastjax.options(timeout=...) or FASTJAX_TIMEOUT.";
}

}  // namespace fastjax
