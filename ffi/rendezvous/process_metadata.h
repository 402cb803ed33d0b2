// Declares ProcessMetadata: what processes tell each other about an exchange before rows move.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_
#define FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastjax {

// Which call it is, and of which group of devices. It is the same in every process.
struct CallKey {
  uint64_t call = 0;
  int32_t group = 0;
  int32_t zero = 0;  // where there would be padding, which is sent as it is

  friend bool operator==(const CallKey& a, const CallKey& b) { return a.call == b.call && a.group == b.group; }
};

// Which of the launches with one key it is, the same in every process. A program is launched many times, a loop in it
// repeats a call, XLA may make several copies of a call site, and JAX may compile a program again.
struct LaunchId {
  uint32_t number =
      0;  // of the launch, as all processes count those of an executable; if `counted` is 0, XLA's own number
  int32_t counted = 0;     // 1 if it is known from where XLA counts
  int32_t copy = 0;        // of the call site, in the order in which they were made
  int32_t repetition = 0;  // of this copy, in this run

  friend bool operator==(const LaunchId& a, const LaunchId& b) {
    return a.number == b.number && a.counted == b.counted && a.copy == b.copy && a.repetition == b.repetition;
  }
};

// A launch by the processes whose devices take part in it.
struct Meeting {
  CallKey key;
  LaunchId launch_id;
  uint64_t settings = 0;  // a hash of what plans depend on; see CallSite
};

// The last two are sent after a connection was renewed. kMeetAgain is the message of kMeet once more, from a process
// that has not received the peer's. kMeetAnswer is the peer's answer: its own message once more.
enum class Kind : int32_t { kMeet = 1, kGiveUp = 2, kMeetAgain = 3, kMeetAnswer = 4 };

// A decoded message. Its members are views into the bytes that arrived.
struct ProcessMetadata : Meeting {
  Kind kind = Kind::kMeet;
  std::string_view text;  // what is being called, or why it was given up
  const int64_t* words = nullptr;
  int64_t num_words = 0;
};

// Stands in a message's text before the beginning of the fingerprint of the call's module.
constexpr char kInModule[] = ", in module ";

// Encodes a message into `out`, which is overwritten.
void Encode(Kind kind, const Meeting& meeting, std::string_view text, const std::vector<int64_t>& words,
            std::vector<std::byte>* out);

// Changes the kind of an encoded message.
void SetKind(Kind kind, std::vector<std::byte>* encoded);

// Decodes any bytes. False if they are no message. `data` must be aligned as int64.
bool Decode(const std::byte* data, size_t bytes, ProcessMetadata* message);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_
