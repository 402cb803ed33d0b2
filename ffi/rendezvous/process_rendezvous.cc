#include "rendezvous/process_rendezvous.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "rendezvous/launch_ids.h"

namespace fastjax {
namespace {

// For so long it is remembered that a session was given up. A process that is later than this waits for its time-out.
constexpr std::chrono::minutes kGivenUpKept{10};
constexpr int kTimeoutsToJoin = 5;  // from when this process joined
constexpr size_t kMostGivenUp = 4096;

constexpr char kOtherPlans[] =
    " plans with another topology, scheduler or row size; fastjax.options and FASTJAX_SCHEDULER must be the same "
    "in every process, and so must rates that were measured";

// Says how far another launch of a call is from this one.
std::string Distance(const LaunchId& theirs, const LaunchId& own) {
  if (theirs.counted != own.counted) return "at another launch of it";  // their numbers count from different ones
  int64_t distance = static_cast<int32_t>(theirs.number - own.number);  // launches of the program
  const char* unit = "launch";
  const char* units = "launches";
  if (distance == 0) {
    distance = int64_t{theirs.repetition} - own.repetition;
    unit = "repetition in a loop";
    units = "repetitions in a loop";
  }
  if (distance == 0) return "at another copy of it";
  const int64_t far = distance < 0 ? -distance : distance;
  return std::to_string(far) + " " + (far == 1 ? unit : units) + (distance < 0 ? " behind" : " further");
}

// Whether, as far as is known, the launches are one.
bool MayBeSame(const Meeting& a, const Meeting& b) { return a.key == b.key && MayBeSame(a.launch_id, b.launch_id); }

// "launch 3", for those whose launches cannot be compared.
std::string Launch(const LaunchId& id) {
  return "launch " + std::to_string(id.number) +
         (id.counted != 0 ? ", as all processes count them"
                          : " of an executable that JAX did not compile or read from its cache, so that nothing says "
                            "from which number it counts");
}

// Returns the place of a process among the others of a session, if it is one of them.
std::optional<size_t> PlaceOf(int32_t process, const ProcessSession& session) {
  const auto found = std::find(session.others.begin(), session.others.end(), process);
  if (found == session.others.end()) return std::nullopt;
  return static_cast<size_t>(found - session.others.begin());
}

template <typename Function>
void ForEachMissing(const ProcessSession& session, Function function) {
  for (size_t place = 0; place < session.messages.size(); ++place) {
    if (session.messages[place] == nullptr) function(session.others[place]);
  }
}

// Whether the processes that have not come to a session are all at an earlier one, at which this process is too.
bool AreAt(const ProcessSession& earlier, const ProcessSession& session) {
  const auto is_there = [&](int32_t process) {
    const auto place = PlaceOf(process, earlier);
    return place.has_value() && earlier.messages[*place] != nullptr;
  };
  bool all = true;
  ForEachMissing(session, [&](int32_t process) { all = all && is_there(process); });
  return all;
}

// Says where a process is, or was and gave up, that did not come to a session.
std::string Elsewhere(const ProcessSession& session, const Meeting& theirs, std::string_view text, bool gave_up) {
  const std::string is = gave_up ? " (which was " : " (which is ";
  const std::string end = gave_up ? ", and gave that up" : "";
  if (theirs.key == session.key) return is + Distance(theirs.launch_id, session.launch_id) + end + ")";
  const auto call = [](std::string_view described) { return described.substr(0, described.rfind(kInModule)); };
  if (call(text) != call(session.text)) return is + "at another call" + end + ": " + std::string(text) + ")";
  if (theirs.settings != session.settings) return " (which" + std::string(kOtherPlans) + ")";
  return is + "at this call of another program of that name" + end + ": " + std::string(text) + ")";
}

}  // namespace

void ProcessRendezvous::Join(ProcessSession* session) {
  session->messages.clear();
  session->messages.resize(session->others.size());
  session->met = session->failed = session->probed = false;
  session->since = std::chrono::steady_clock::now();
  session->deadline = session->since + session->timeout;
  joined_.push_back(session);
  if (!closed_.ok()) return LoseFrom(session, kNobody, closed_);
  if (const GivenUp* const old = Recall(*session); old != nullptr) return FailHere(session, GaveUp(*session, *old));
  for (const int32_t process : session->others) {
    transport_->SendMessage(process, session->bytes.data(), session->bytes.size());
  }
  for (size_t place = 0; place < session->others.size(); ++place) {
    const auto process = static_cast<size_t>(session->others[place]);
    if (process >= early_.size()) continue;
    auto& messages = early_[process];
    const auto found = std::find_if(messages.begin(), messages.end(),
                                    [&](const KeptMessage& message) { return MayBeSame(message->metadata, *session); });
    if (found == messages.end()) continue;
    KeptMessage message = std::move(*found);
    messages.erase(found);
    if (!Accept(session, place, std::move(message))) return;
  }
  BeginIfMet(session);
}

void ProcessRendezvous::Leave(ProcessSession* session) {
  const auto place = std::find(joined_.begin(), joined_.end(), session);
  if (place != joined_.end()) {
    if (session->met && std::next(place) != joined_.end()) WaitAnew(place, std::chrono::steady_clock::now());
    joined_.erase(place);
  }
  session->messages.clear();
}

bool ProcessRendezvous::OthersHaveMet(const ProcessSession& session) const {
  return std::any_of(joined_.begin(), joined_.end(),
                     [&](const ProcessSession* other) { return other != &session && other->met; });
}

void ProcessRendezvous::TellComers(const ProcessSession& session, const Status& why) {
  if (session.others.empty()) return;
  Remember({session, why.message, transport_->process()});
  const GivenUp& given_up = given_up_.back();
  for (const int32_t process : given_up.came) Tell(process, given_up);
}

void ProcessRendezvous::FailEverywhere(ProcessSession* session, const Status& why, int32_t lost) {
  if (session->failed) return;
  TellAll(*session, why, lost);
  FailHere(session, why);
}

void ProcessRendezvous::TellAll(const ProcessSession& session, const Status& why, int32_t lost) {
  GivenUp given_up(session, why.message, transport_->process());
  for (const int32_t process : session.others) {
    if (process != lost) Tell(process, given_up);
  }
  Remember(std::move(given_up));
}

// A connection that was cut off recovers slowly: the next exchange begins with another.
void ProcessRendezvous::FailHere(ProcessSession* session, const Status& why) {
  if (session->failed) return;
  session->failed = true;
  ForEachMissing(*session, [this](int32_t process) {
    if (transport_->Silent(process)) transport_->Disconnect(process);
  });
  session->participant->OnFailed(why);
}

void ProcessRendezvous::Tell(int32_t process, const GivenUp& given_up) {
  Encode(Kind::kGiveUp, given_up, given_up.text, {}, &scratch_);
  transport_->SendMessage(process, scratch_.data(), scratch_.size());
}

// Remembers a launch that was given up, and forgets the messages that had arrived for it.
void ProcessRendezvous::Remember(GivenUp given_up) {
  const auto stale = [&](const KeptMessage& message) { return MayBeSame(message->metadata, given_up); };
  for (size_t process = 0; process < early_.size(); ++process) {
    auto& messages = early_[process];
    const auto theirs = std::find_if(messages.begin(), messages.end(), stale);
    if (theirs == messages.end()) continue;
    if (static_cast<int32_t>(process) == given_up.by) given_up.call = (*theirs)->metadata.text;
    given_up.came.push_back(static_cast<int32_t>(process));
    messages.erase(std::remove_if(messages.begin(), messages.end(), stale), messages.end());
  }
  const auto now = given_up.at;
  given_up_.push_back(std::move(given_up));
  while (given_up_.size() > kMostGivenUp || now - given_up_.front().at > kGivenUpKept) given_up_.pop_front();
}

const ProcessRendezvous::GivenUp* ProcessRendezvous::Recall(const Meeting& meeting) const {
  const auto found =
      std::find_if(given_up_.begin(), given_up_.end(), [&](const GivenUp& old) { return MayBeSame(old, meeting); });
  return found == given_up_.end() ? nullptr : &*found;
}

void ProcessRendezvous::OnMessage(int32_t process, const std::byte* data, size_t bytes) {
  KeptMessage message(messages_.Take(), GiveBack{&messages_});
  message->memory.resize((bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (bytes > 0) std::memcpy(message->memory.data(), data, bytes);
  if (!Decode(reinterpret_cast<const std::byte*>(message->memory.data()), bytes, &message->metadata)) {
    return OnLost(process,
                  Status::Internal(transport_->Describe(process) + " sent a message that is none of fastjax's; "
                                                                   "do all processes run the same version?"));
  }
  if (message->metadata.kind != Kind::kGiveUp) return Receive(process, std::move(message));
  OnGiveUp(process, message->metadata);
}

ProcessSession* ProcessRendezvous::Find(int32_t process, const Meeting& meeting) const {
  for (ProcessSession* session : joined_) {
    if (session->failed || !MayBeSame(*session, meeting)) continue;
    if (PlaceOf(process, *session).has_value()) return session;
  }
  return nullptr;
}

void ProcessRendezvous::Receive(int32_t process, KeptMessage message) {
  if (ProcessSession* session = Find(process, message->metadata); session != nullptr) {
    const auto place = PlaceOf(process, *session);
    if (place.has_value() && Accept(session, *place, std::move(message))) BeginIfMet(session);
    return;
  }
  // The process that gave up has told all others, except the one that had told it.
  if (const GivenUp* const old = Recall(message->metadata); old != nullptr) {
    if (old->by == transport_->process()) Tell(process, *old);
    return;
  }
  if (message->metadata.kind == Kind::kMeetAnswer) return;  // no answer to an answer
  if (static_cast<size_t>(process) >= early_.size()) early_.resize(static_cast<size_t>(process) + 1);
  auto& messages = early_[static_cast<size_t>(process)];
  for (const KeptMessage& other : messages) {
    const bool same = message->metadata.kind == Kind::kMeetAgain && MayBeSame(other->metadata, message->metadata);
    if (same) return;
  }
  messages.push_back(std::move(message));
}

bool ProcessRendezvous::Accept(ProcessSession* session, size_t place, KeptMessage message) {
  const ProcessMetadata& theirs = message->metadata;
  const auto who = [&] { return transport_->Describe(session->others[place]); };
  const auto refuse = [&](const Status& why) {
    FailEverywhere(session, why);
    return false;
  };
  if (theirs.text != session->text) {
    return refuse(Status::Invalid(session->prefix + "the program of " + who() + " differs: here, " + session->text +
                                  "; there, " + std::string(theirs.text) + "."));
  }
  if (theirs.settings != session->settings) {
    return refuse(Status::Invalid(session->prefix + who() + kOtherPlans + "."));
  }
  if (!(theirs.launch_id == session->launch_id)) {
    return refuse(
        Status::Invalid(session->prefix + "this launch and that of " + who() +
                        " cannot be told to be the same: here, " + session->text + ", " + Launch(session->launch_id) +
                        "; there, " + std::string(theirs.text) + ", " + Launch(theirs.launch_id) +
                        ". Compile the program in every process, or load the same serialized executable in each."));
  }
  if (session->messages[place] != nullptr) {
    if (theirs.kind == Kind::kMeetAgain) SendAgain(*session, session->others[place], Kind::kMeetAnswer);
    if (theirs.kind != Kind::kMeet) return false;
    return refuse(Status::Internal(session->prefix + who() + " came twice to one exchange."));
  }
  session->messages[place] = std::move(message);
  return true;
}

void ProcessRendezvous::BeginIfMet(ProcessSession* session) {
  bool met = true;
  ForEachMissing(*session, [&](int32_t) { met = false; });
  if (!met) return;
  session->met = true;
  session->participant->OnMet();
}

void ProcessRendezvous::OnGiveUp(int32_t process, const ProcessMetadata& message) {
  Remember({message, message.text, process});
  // Of launches that cannot be compared, any may be it.
  const GivenUp told = given_up_.back();
  ForEachJoined([&](ProcessSession* session) {
    const bool fails = !session->failed && MayBeSame(*session, told) && PlaceOf(process, *session).has_value();
    if (fails) FailHere(session, GaveUp(*session, told));
  });
}

Status ProcessRendezvous::GaveUp(const ProcessSession& session, const GivenUp& given_up) const {
  return Status::Unavailable(session.prefix + transport_->Describe(given_up.by) + " gave up: " + given_up.text);
}

void ProcessRendezvous::OnLost(int32_t process, const Status& status) {
  if (static_cast<size_t>(process) < early_.size()) early_[static_cast<size_t>(process)].clear();
  ForEachJoined([&](ProcessSession* session) {
    if (PlaceOf(process, *session).has_value()) LoseFrom(session, process, status);
  });
}

void ProcessRendezvous::LoseFrom(ProcessSession* session, int32_t process, const Status& status) {
  const Status why{status.code, session->prefix + status.message};
  FailEverywhere(session, session->met ? session->participant->Explain(why) : why, process);
}

void ProcessRendezvous::OnRenewed(int32_t process, const Status& why) {
  ForEachJoined([&](ProcessSession* session) {
    const auto place = PlaceOf(process, *session);
    if (session->failed || !place.has_value()) return;
    if (session->messages[*place] == nullptr) return SendAgain(*session, process, Kind::kMeetAgain);
    // The process gave up rows, which may be of this exchange.
    if (session->met && !why.ok()) LoseFrom(session, process, why);
  });
}

void ProcessRendezvous::SendAgain(const ProcessSession& session, int32_t process, Kind kind) {
  scratch_ = session.bytes;
  SetKind(kind, &scratch_);
  transport_->SendMessage(process, scratch_.data(), scratch_.size());
}

// Sessions that came after one that goes on, or has ended now: who is missing could not come before. The time-out of
// the earlier one limits that.
void ProcessRendezvous::WaitAnew(std::vector<ProcessSession*>::const_iterator earlier,
                                 std::chrono::steady_clock::time_point now) {
  for (auto later = std::next(earlier); later != joined_.end(); ++later) {
    ProcessSession& session = **later;
    if (session.met || session.failed || !AreAt(**earlier, session)) continue;
    session.since = now;
    session.deadline = now + session.timeout;
    session.probed = false;
  }
}

void ProcessRendezvous::OnTick(std::chrono::steady_clock::time_point now) {
  for (auto session = joined_.begin(); session != joined_.end(); ++session) {
    if (!(*session)->failed) WaitAnew(session, now);
  }
  ForEachJoined([&](ProcessSession* session) {
    if (session->met) return session->participant->OnTick(now);
    if (!session->failed) Await(session, now);
  });
}

// Others may read data or compile long before their first launch.
void ProcessRendezvous::WaitForNewcomers(ProcessSession* session, std::chrono::steady_clock::time_point now) {
  bool newcomers = false;
  ForEachMissing(*session, [&](int32_t process) { newcomers = newcomers || !transport_->HasJoined(process); });
  if (!newcomers) return;
  const auto limit = opened_ + kTimeoutsToJoin * session->timeout;
  session->deadline = std::max(session->deadline, std::min(now + session->timeout, limit));
}

void ProcessRendezvous::Await(ProcessSession* session, std::chrono::steady_clock::time_point now) {
  WaitForNewcomers(session, now);
  if (now >= session->deadline) return FailEverywhere(session, Status::Deadline(session->prefix + Missing(*session)));
  if (session->probed || now < session->deadline - session->timeout / 2) return;
  session->probed = true;
  ForEachMissing(*session, [this](int32_t process) { transport_->Probe(process); });
}

void ProcessRendezvous::OnClosed(const Status& why) {
  closed_ = why;
  ForEachJoined([&](ProcessSession* session) { LoseFrom(session, kNobody, why); });
}

// A call of `function` may make sessions leave, also others than its own. Those are skipped.
template <typename Function>
void ProcessRendezvous::ForEachJoined(Function function) {
  const std::vector<ProcessSession*> joined = joined_;
  for (ProcessSession* session : joined) {
    if (std::find(joined_.begin(), joined_.end(), session) != joined_.end()) function(session);
  }
}

// Returns what is known of a process that did not come.
std::string ProcessRendezvous::Whereabouts(const ProcessSession& session, size_t process) const {
  if (process < early_.size() && !early_[process].empty()) {
    const ProcessMetadata& theirs = early_[process].back()->metadata;
    return Elsewhere(session, theirs, theirs.text, false);
  }
  // That process may have waited a little longer than this one.
  const auto since = session.deadline - session.timeout;
  for (auto old = given_up_.rbegin(); old != given_up_.rend() && old->at >= since; ++old) {
    if (old->by != static_cast<int32_t>(process) || old->call.empty()) continue;
    return Elsewhere(session, *old, old->call, true);
  }
  return "";
}

// Returns which processes did not come, and what is known of them.
std::string ProcessRendezvous::Missing(const ProcessSession& session) const {
  std::string text =
      "waited " +
      Seconds(std::chrono::duration_cast<std::chrono::milliseconds>(session.deadline - session.since).count()) +
      " for ";
  bool elsewhere = false;
  bool first = true;
  for (size_t place = 0; place < session.others.size(); ++place) {
    if (session.messages[place] != nullptr) continue;
    const auto process = static_cast<size_t>(session.others[place]);
    text += (first ? "" : ", ") + transport_->Describe(session.others[place]);
    first = false;
    if (const std::string trouble = transport_->Trouble(session.others[place]); !trouble.empty()) {
      text += " (" + trouble + ")";
    }
    const std::string where = Whereabouts(session, process);
    text += where;
    elsewhere = elsewhere || !where.empty();
  }
  text += ", which did not reach this call: " + session.text + ".";
  if (elsewhere) {
    return text +
           " Every process must launch the same calls in the same order: look for a launch that one of them left "
           "out, or made beside the others.";
  }
  return text +
         " Look for a process that died, stopped or runs another program; "
         "if it is only slow, raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT.";
}

}  // namespace fastjax
