// Declares ProcessRendezvous, where the processes of a launch meet before rows move: each sends the others its process
// metadata. It runs on the transport's thread.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_RENDEZVOUS_H_
#define FASTJAX_RENDEZVOUS_PROCESS_RENDEZVOUS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/status.h"
#include "rendezvous/process_metadata.h"
#include "runtime/reused.h"
#include "runtime/transport.h"

namespace fastjax {

// The owner of a session. It is called on the transport's thread.
class Participant {
 public:
  virtual ~Participant() = default;
  // Called when the messages of all processes have arrived.
  virtual void OnMet() = 0;
  // Called when a process does not come, or gave up later. It is called at most once; the participant still has to
  // leave.
  virtual void OnFailed(const Status& why) = 0;
  // Returns what the participant waits for, for the error when another process is lost after OnMet.
  virtual Status Explain(const Status& why) const { return why; }
  // Called about ten times a second after OnMet, until the participant leaves.
  virtual void OnTick(std::chrono::steady_clock::time_point /*now*/) {}
};

// A message, and the memory that its metadata are views into.
struct ReceivedMessage {
  std::vector<int64_t> memory;
  ProcessMetadata metadata;
};

// Gives a message's memory back to be used again.
struct GiveBack {
  Reused<ReceivedMessage>* to = nullptr;
  void operator()(ReceivedMessage* message) const { to->Return(message); }
};
using KeptMessage = std::unique_ptr<ReceivedMessage, GiveBack>;

// One process's part in one launch: its message to the others, and their messages.
struct ProcessSession : Meeting {
  ProcessSession() = default;
  ProcessSession(ProcessSession&&) = default;
  void Encode() { fastjax::Encode(Kind::kMeet, *this, text, words, &bytes); }

  std::string text;              // what is called
  std::vector<int64_t> words;    // of the message to the others
  std::vector<std::byte> bytes;  // the message, encoded
  std::vector<int32_t> others;   // processes
  std::chrono::milliseconds timeout{0};
  std::string prefix;  // of errors
  Participant* participant = nullptr;

  std::vector<KeptMessage> messages;  // by place in `others`; null: not yet
  bool met = false;
  bool failed = false;
  bool probed = false;                          // whether the processes that have not come have been probed
  std::chrono::steady_clock::time_point since;  // the others could have come
  std::chrono::steady_clock::time_point deadline;
};

// All methods are called on the transport's thread.
class ProcessRendezvous final : public Handler {
 public:
  explicit ProcessRendezvous(Transport* transport) : transport_(transport) {}

  void Join(ProcessSession* session);
  void Leave(ProcessSession* session);
  // Failures, by whom they tell (docs/design/network.md). The first failure of a session counts. On return the session
  // may have been left and destroyed, as after every method that calls a participant.
  //
  // Fails a session, or the launch after it has met, here and in all other processes but `lost`.
  void FailEverywhere(ProcessSession* session, const Status& why, int32_t lost = kNobody);
  // Fails it here only: the others find the same mistake, or know.
  void FailHere(ProcessSession* session, const Status& why);
  // Tells the others, but `lost`, that this process does not come: not all of its devices reached the call.
  void TellAll(const ProcessSession& session, const Status& why, int32_t lost = kNobody);
  // Tells those of the others that have come, or come later: none of this process's devices reached the call.
  void TellComers(const ProcessSession& session, const Status& why);
  // Whether rows of other sessions may be in flight.
  bool OthersHaveMet(const ProcessSession& session) const;
  // Whether a process has given the session up already, so that joining it would fail at once.
  bool IsGivenUp(const Meeting& meeting) const { return Recall(meeting) != nullptr; }

  void OnMessage(int32_t process, const std::byte* data, size_t bytes) override;
  void OnLost(int32_t process, const Status& status) override;
  void OnRenewed(int32_t process, const Status& why) override;
  void OnTick(std::chrono::steady_clock::time_point now) override;
  void OnClosed(const Status& why) override;
  bool Busy() const override { return !joined_.empty(); }

 private:
  static constexpr int32_t kNobody = -1;

  // A session that was given up. A process that comes later, this one included, is told at once.
  struct GivenUp : Meeting {
    GivenUp(const Meeting& meeting, std::string_view why, int32_t process) : Meeting(meeting), text(why), by(process) {}

    std::string text;
    int32_t by;  // process
    std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
    std::string call;           // that process was at, and this one was not, with the settings of the meeting
    std::vector<int32_t> came;  // processes whose messages came
  };

  void WaitForNewcomers(ProcessSession* session, std::chrono::steady_clock::time_point now);
  void Await(ProcessSession* session, std::chrono::steady_clock::time_point now);
  void WaitAnew(std::vector<ProcessSession*>::const_iterator earlier, std::chrono::steady_clock::time_point now);
  Status GaveUp(const ProcessSession& session, const GivenUp& given_up) const;
  template <typename Function>
  void ForEachJoined(Function function);
  void Tell(int32_t process, const GivenUp& given_up);
  void Remember(GivenUp given_up);
  const GivenUp* Recall(const Meeting& meeting) const;
  void Receive(int32_t process, KeptMessage message);
  // False if the message ended the session, or is nothing new.
  bool Accept(ProcessSession* session, size_t place, KeptMessage message);
  // The process is lost to the session.
  void LoseFrom(ProcessSession* session, int32_t process, const Status& status);  // kNobody: all are
  void SendAgain(const ProcessSession& session, int32_t process, Kind kind);
  void BeginIfMet(ProcessSession* session);
  void OnGiveUp(int32_t process, const ProcessMetadata& message);
  ProcessSession* Find(int32_t process, const Meeting& meeting) const;
  std::string Whereabouts(const ProcessSession& session, size_t process) const;
  std::string Missing(const ProcessSession& session) const;

  Transport* transport_;
  const std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
  Status closed_;  // why no session is accepted any more
  std::vector<ProcessSession*> joined_;
  Reused<ReceivedMessage> messages_;
  // By process: messages for sessions that this process has not joined yet.
  std::vector<std::deque<KeptMessage>> early_;
  std::deque<GivenUp> given_up_;
  std::vector<std::byte> scratch_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_RENDEZVOUS_H_
