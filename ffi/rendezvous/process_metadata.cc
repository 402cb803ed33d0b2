#include "rendezvous/process_metadata.h"

#include <cstddef>
#include <cstring>

namespace fastjax {
namespace {

struct Header {
  Meeting meeting;
  int64_t num_words;
  int64_t text_bytes;
  int64_t kind;
};
static_assert(sizeof(Header) % sizeof(int64_t) == 0);

// The text is padded so that words are aligned.
size_t Padded(size_t bytes) { return (bytes + sizeof(int64_t) - 1) / sizeof(int64_t) * sizeof(int64_t); }

}  // namespace

void Encode(Kind kind, const Meeting& meeting, std::string_view text, const std::vector<int64_t>& words,
            std::vector<std::byte>* out) {
  const Header header = {meeting, static_cast<int64_t>(words.size()), static_cast<int64_t>(text.size()),
                         static_cast<int64_t>(kind)};
  const size_t words_at = sizeof(Header) + Padded(text.size());
  const size_t words_bytes = words.size() * sizeof(int64_t);
  out->assign(words_at + words_bytes, std::byte{0});
  std::memcpy(out->data(), &header, sizeof(Header));
  std::memcpy(out->data() + sizeof(Header), text.data(), text.size());
  if (words_bytes > 0) std::memcpy(out->data() + words_at, words.data(), words_bytes);
}

void SetKind(Kind kind, std::vector<std::byte>* encoded) {
  const auto number = static_cast<int64_t>(kind);
  std::memcpy(encoded->data() + offsetof(Header, kind), &number, sizeof(number));
}

bool Decode(const std::byte* data, size_t bytes, ProcessMetadata* message) {
  Header header;
  if (bytes < sizeof(Header)) return false;
  std::memcpy(&header, data, sizeof(Header));
  const size_t rest = bytes - sizeof(Header);
  if (header.text_bytes < 0 || header.num_words < 0 || static_cast<uint64_t>(header.text_bytes) > rest) return false;
  const size_t text = Padded(static_cast<size_t>(header.text_bytes));
  if (text > rest || (rest - text) % sizeof(int64_t) != 0 ||
      static_cast<uint64_t>(header.num_words) != (rest - text) / sizeof(int64_t)) {
    return false;
  }
  if (header.kind < static_cast<int64_t>(Kind::kMeet) || header.kind > static_cast<int64_t>(Kind::kMeetAnswer)) {
    return false;
  }
  static_cast<Meeting&>(*message) = header.meeting;
  message->kind = static_cast<Kind>(header.kind);
  message->text = {reinterpret_cast<const char*>(data) + sizeof(Header), static_cast<size_t>(header.text_bytes)};
  message->words = reinterpret_cast<const int64_t*>(data + sizeof(Header) + text);
  message->num_words = header.num_words;
  return true;
}

}  // namespace fastjax
