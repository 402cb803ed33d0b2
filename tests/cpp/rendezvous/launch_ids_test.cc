// What processes tell each other, bit by bit, and what they take for the same launch of a call site.
#include "rendezvous/launch_ids.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "rendezvous/process_metadata.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

TEST(Messages) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes;
  for (int length = 0; length < 40; ++length) {
    const std::string text(static_cast<size_t>(length), 'a');
    std::vector<int64_t> words(static_cast<size_t>(length % 7));
    for (int64_t& word : words) word = static_cast<int64_t>(random());
    const Kind kind = length % 2 == 0 ? Kind::kMeet : Kind::kGiveUp;
    const Meeting meeting = {{random(), length}, {1, 2, 3, 4}, random()};
    Encode(kind, meeting, text, words, &bytes);
    ProcessMetadata read;
    CHECK(Decode(bytes.data(), bytes.size(), &read));
    CHECK(read.kind == kind && read.key == meeting.key && read.settings == meeting.settings);
    CHECK(read.launch_id == meeting.launch_id && read.text == text);
    CHECK(std::vector<int64_t>(read.words, read.words + read.num_words) == words);
    // Nothing shorter or longer is a message.
    for (size_t cut = 0; cut < bytes.size(); ++cut) CHECK(!Decode(bytes.data(), cut, &read));
    std::vector<std::byte> more = bytes;
    more.resize(bytes.size() + 8);
    CHECK(!Decode(more.data(), more.size(), &read));
  }
  // Whatever the bytes are, what is decoded lies inside them.
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> changed = bytes;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<std::byte>(random());
    ProcessMetadata read;
    if (!Decode(changed.data(), changed.size(), &read)) continue;
    const auto* end = reinterpret_cast<const char*>(changed.data() + changed.size());
    CHECK(read.text.data() + read.text.size() <= end);
    CHECK(reinterpret_cast<const char*>(read.words + read.num_words) <= end);
  }
}

constexpr uint64_t kCall = 77;
constexpr char kModule[] = "1e9cd207";

void CheckAgree(const std::vector<LaunchId>& a, const std::vector<LaunchId>& b) {
  CHECK_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) CHECK(MayBeSame(a[i], b[j]) == (i == j) && (a[i] == b[j]) == (i == j));
  }
}

// XLA's run ids are 32 bits, of either sign.
int64_t RunId(uint32_t start, int64_t launch) { return static_cast<int32_t>(start + static_cast<uint32_t>(launch)); }

std::vector<LaunchId> Launch(LaunchIds* launch_ids, int64_t site, uint32_t start, const std::vector<int64_t>& order) {
  std::vector<LaunchId> found(order.size());
  for (const int64_t i : order) found[static_cast<size_t>(i)] = launch_ids->Count(site, 0, RunId(start, i));
  return found;
}

// The same launches of a program in two processes, in any order, wherever each counts from: where it wraps around,
// where the sign changes. What is alike in all processes is part of run ids, and not of starts.
TEST(Starts) {
  constexpr uint32_t kAlike = 0x1f6ba42f;
  for (const uint32_t start : {900u, 0u, 0xfffffffeu - kAlike, 0x7fffffffu - kAlike}) {
    LaunchIds a;
    LaunchIds b;
    const int64_t site_a = a.Open(kCall, kModule);
    const int64_t site_b = b.Open(kCall, kModule);
    a.CountFrom(kModule, 900);
    b.CountFrom(kModule, start);
    CheckAgree(Launch(&a, site_a, 900 + kAlike, {0, 1, 2, 3, 4}), Launch(&b, site_b, start + kAlike, {1, 0, 4, 3, 2}));
  }
}

// Nothing says from where executables count that JAX did not make. Equal starts are seen, others are not compared.
TEST(UnknownStarts) {
  LaunchIds a;
  LaunchIds b;
  const int64_t site_a = a.Open(kCall, kModule);
  const int64_t site_b = b.Open(kCall, kModule);
  const std::vector<LaunchId> here = Launch(&a, site_a, 0xffffffffu, {0, 1, 2});
  CheckAgree(here, Launch(&b, site_b, 0xffffffffu, {2, 1, 0}));
  for (const LaunchId& there : Launch(&b, site_b, 1'000'000'000, {0, 1, 2})) {
    for (const LaunchId& id : here) CHECK(MayBeSame(id, there) && MayBeSame(there, id) && !(id == there));
  }
  // Not if one of the two is known either. Other modules and earlier executables are not meant.
  LaunchIds c;
  const int64_t site_c = c.Open(kCall, kModule);
  for (LaunchIds* const ids : {&b, &c}) {
    ids->CountFrom("another", 7);
    ids->CountFrom(kModule, 8);
    ids->CountFrom(kModule, 9);
  }
  CHECK_EQ(b.Count(site_b, 0, 5).counted, 0);
  const LaunchId counted = c.Count(site_c, 0, 108);
  CHECK(counted.counted == 1 && counted.number == 100);
  CHECK(MayBeSame(here[0], counted) && !(here[0] == counted));
}

// Copies of a call site, and sites of executables that were made later, are others, also when the first are gone.
TEST(Copies) {
  LaunchIds a;
  LaunchIds b;
  std::vector<LaunchId> all[2];
  for (LaunchIds* const ids : {&a, &b}) {
    for (int made = 0; made < 3; ++made) {
      const int64_t sites[] = {ids->Open(kCall, kModule), ids->Open(kCall, kModule)};
      static_cast<void>(ids->Open(kCall + 1, kModule));
      for (int repetition = 0; repetition < 3; ++repetition) {
        for (const int64_t site : sites) all[ids == &b].push_back(ids->Count(site, 0, 10));
      }
      if (made == 1) ids->Close(sites[0]);
    }
  }
  CheckAgree(all[0], all[1]);
}

// Whatever the numbers are, nothing overflows.
TEST(AnyNumbers) {
  std::mt19937_64 random(7);
  LaunchId a;
  LaunchId b;
  for (int i = 0; i < 1000; ++i) {
    for (LaunchId* id : {&a, &b}) *id = {static_cast<uint32_t>(random()), static_cast<int32_t>(random() % 3), 0, 0};
    CHECK(MayBeSame(a, a) && MayBeSame(a, b) == MayBeSame(b, a));
  }
}

// Groups count for themselves, and old runs are forgotten, new ones are not.
TEST(Rounds) {
  LaunchIds a;
  const int64_t site = a.Open(kCall, kModule);
  CHECK_EQ(a.Count(site, 0, 1).repetition, 0);
  CHECK_EQ(a.Count(site, 1, 1).repetition, 0);
  for (int64_t run_id = 2; run_id < 20'000; ++run_id) CHECK_EQ(a.Count(site, 0, run_id).repetition, 0);
  CHECK_EQ(a.Count(site, 0, 19'999).repetition, 1);
  CHECK_EQ(a.Count(site, 0, 1).repetition, 0);
  CHECK_EQ(a.Count(site, 0, 1).repetition, 1);
}

}  // namespace
}  // namespace fastjax::test
