// Declares ProcessMetadata: what processes tell each other about an exchange before rows move.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_
#define FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastjax {

// What is called, and by which group of devices. The same in every process.
struct CallKey {
  uint64_t call = 0;
  int32_t group = 0;

  friend bool operator==(const CallKey& a, const CallKey& b) { return a.call == b.call && a.group == b.group; }
};

// Which time it is that a process comes by with this key. A program is launched many times, a loop in it repeats a
// call, XLA may make several copies of a call site, and JAX may compile a program again.
struct LaunchId {
  int64_t run_id = 0;      // XLA's number of the launch, in this process
  int64_t first_run = 0;   // and that of the first one that came by the call site
  int64_t generation = 0;  // how often the process had compiled the program before this one, and launched it
  int64_t before = 0;      // its launches up to then
  int32_t copy = 0;        // of the call site, in the order in which they were made
  int32_t copies = 1;      // that the executable has
  int32_t round = 0;       // of this copy, in this run
};

// After a connection was renewed: kMeetAgain is the message once more, from somebody who has none of the receiver's,
// and kMeetAnswer the receiver's once more, if it had that message already.
enum class Kind : int32_t { kMeet = 1, kGiveUp = 2, kMeetAgain = 3, kMeetAnswer = 4 };

// Views into a message that arrived.
struct ProcessMetadata {
  Kind kind = Kind::kMeet;
  CallKey key;
  LaunchId launch_id;
  uint64_t settings = 0;  // a hash of what plans depend on; see CallSite
  std::string_view text;  // what is being called, or why it was given up
  const int64_t* words = nullptr;
  int64_t num_words = 0;
};

// Replaces what `out` holds.
void Encode(const ProcessMetadata& message, std::vector<std::byte>* out);

// Changes the kind in bytes that Encode made.
void SetKind(Kind kind, std::vector<std::byte>* encoded);

// False if this is no message, whatever the bytes are. `data` must be aligned as int64.
bool Decode(const std::byte* data, size_t bytes, ProcessMetadata* message);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_METADATA_H_
