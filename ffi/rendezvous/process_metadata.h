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

  friend bool operator==(const CallKey& a, const CallKey& b) { return a.call == b.call && a.group == b.group; }
};

constexpr int64_t kUnknownStart = -1;

// Which of the launches with one key it is, as one process counts them. A program is launched many times, a loop in it
// repeats a call, XLA may make several copies of a call site, and JAX may compile a program again.
struct LaunchId {
  int64_t run_id = 0;             // XLA's number of the launch, in this process
  int64_t start = kUnknownStart;  // from where XLA counts them, in this process
  int32_t copy = 0;               // of the call site, in the order in which they were made
  int32_t repetition = 0;         // of this copy, in this run
};

// The last two are sent after a connection was renewed. kMeetAgain is the message of kMeet once more, from a process
// that has not received the peer's. kMeetAnswer is the peer's answer: its own message once more.
enum class Kind : int32_t { kMeet = 1, kGiveUp = 2, kMeetAgain = 3, kMeetAnswer = 4 };

// A decoded message. Its members are views into the bytes that arrived.
struct ProcessMetadata {
  Kind kind = Kind::kMeet;
  CallKey key;
  LaunchId launch_id;
  uint64_t settings = 0;  // a hash of what plans depend on; see CallSite
  std::string_view text;  // what is being called, or why it was given up
  const int64_t* words = nullptr;
  int64_t num_words = 0;
};

// Stands in a message's text before the beginning of the fingerprint of the call's module.
constexpr char kInModule[] = ", in module ";

// Encodes a message into `out`, which is overwritten.
void Encode(const ProcessMetadata& message, std::vector<std::byte>* out);

// Changes the kind of an encoded message.
void SetKind(Kind kind, std::vector<std::byte>* encoded);

// Decodes any bytes. False if they are no message. `data` must be aligned as int64.
bool Decode(const std::byte* data, size_t bytes, ProcessMetadata* message);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_
