// Where processes meet before rows move: each tells the others what it knows of the exchange it came to.
#ifndef FASTJAX_RENDEZVOUS_MEETINGS_H_
#define FASTJAX_RENDEZVOUS_MEETINGS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "exchange/status.h"
#include "rendezvous/message.h"
#include "runtime/wire.h"

namespace fastjax {

// Takes part in a meeting; told of it on the wire's thread.
class Guest {
 public:
  virtual ~Guest() = default;
  // Everybody is here.
  virtual void OnMet() = 0;
  // Not everybody comes, or somebody gave up later. At most once; the guest still has to leave.
  virtual void OnFailed(const Status& why) = 0;
  // Says where it is, after OnMet, when one of the others is lost.
  virtual Status Explain(const Status& why) const { return why; }
  // About ten times a second after OnMet, until the guest leaves.
  virtual void OnTick(std::chrono::steady_clock::time_point now) = 0;
};

// A message with its memory.
struct Letter {
  std::vector<int64_t> memory;
  Message message;
};

// What one process brings to a meeting, and what it takes home.
struct Meeting {
  Meeting() = default;
  Meeting(Meeting&&) = default;

  Key key;
  Visit visit;
  uint64_t settings = 0;
  std::string text;              // what is called
  std::vector<std::byte> bytes;  // the encoded message for the others
  std::vector<int32_t> others;   // processes
  std::chrono::milliseconds timeout{0};
  std::string prefix;  // of errors
  Guest* guest = nullptr;

  std::vector<std::unique_ptr<Letter>> letters;  // by place in `others`; null: not yet
  bool met = false;
  bool failed = false;
  bool probed = false;  // those who do not come
  std::chrono::steady_clock::time_point deadline;
};

// All methods are called on the wire's thread.
class Meetings final : public Handler {
 public:
  explicit Meetings(Wire* wire) : wire_(wire) {}

  void Join(Meeting* meeting);
  void Leave(Meeting* meeting);
  // Ends a meeting, or what came after it, here and everywhere. It may be left, and its memory gone, on return; so it
  // is with all that calls a guest.
  void GiveUp(Meeting* meeting, const Status& why);
  // The same, where every process finds the same mistake.
  void FailAlike(Meeting* meeting, const Status& why);
  // Tells the others that this process will not come: its own devices did not all reach the call.
  void StayAway(const Meeting& meeting, const Status& why);
  // Whether somebody has given it up already: joining would fail at once.
  bool IsGivenUp(const Key& key, const Visit& visit) const { return Recall(key, visit) != nullptr; }

  void OnMessage(int32_t process, const std::byte* data, size_t bytes) override;
  void OnLost(int32_t process, const Status& status) override;
  void OnRenewed(int32_t process, const Status& why) override;
  void OnTick(std::chrono::steady_clock::time_point now) override;
  void OnClosed(const Status& why) override;
  bool Busy() const override { return !joined_.empty(); }

 private:
  // A meeting that was given up: whoever comes later, here or from elsewhere, is told at once.
  struct GivenUp {
    Key key;
    Visit visit;
    std::string text;
    int32_t by;  // process
    std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
    std::string call = {};  // that it had come to and this process had not
  };

  static constexpr int32_t kNobody = -1;

  // Tells everybody but `lost`.
  void Fail(Meeting* meeting, const Status& why, int32_t lost = kNobody);
  void FailQuietly(Meeting* meeting, const Status& why);
  void Await(Meeting* meeting, std::chrono::steady_clock::time_point now);
  template <typename Visit>
  static void ForEachMissing(const Meeting& meeting, Visit visit);
  Status GaveUp(const Meeting& meeting, const GivenUp& given_up) const;
  template <typename Visit>
  void ForEachJoined(Visit visit);
  void TellAll(const Meeting& meeting, const Status& why, int32_t lost = kNobody);
  void Tell(int32_t process, const GivenUp& given_up);
  void Remember(GivenUp given_up);
  const GivenUp* Recall(const Key& key, const Visit& visit) const;
  void Receive(int32_t process, std::unique_ptr<Letter> letter);
  // False if the letter ended the meeting, or is nothing new.
  bool Accept(Meeting* meeting, size_t place, std::unique_ptr<Letter> letter);
  // The process is lost to the meeting.
  void LoseFrom(Meeting* meeting, int32_t process, const Status& status);  // kNobody: all are
  void SendAgain(const Meeting& meeting, int32_t process, Kind kind);
  void BeginIfMet(Meeting* meeting);
  void OnGiveUp(int32_t process, const Message& message);
  Meeting* Find(int32_t process, const Message& message) const;
  std::string Whereabouts(const Meeting& meeting, size_t process) const;
  std::string Missing(const Meeting& meeting) const;
  std::unique_ptr<Letter> TakeLetter();
  void PutAway(std::unique_ptr<Letter> letter);

  Wire* wire_;
  Status closed_;  // why nobody meets any more
  std::vector<Meeting*> joined_;
  std::vector<std::deque<std::unique_ptr<Letter>>> early_;  // by process: for meetings that nobody here has joined yet
  std::vector<std::unique_ptr<Letter>> free_;
  std::deque<GivenUp> given_up_;
  std::vector<std::byte> scratch_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_MEETINGS_H_
