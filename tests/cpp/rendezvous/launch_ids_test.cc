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

void TestMessages() {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes;
  for (int length = 0; length < 40; ++length) {
    const std::string text(static_cast<size_t>(length), 'a');
    std::vector<int64_t> words(static_cast<size_t>(length % 7));
    for (int64_t& word : words) word = static_cast<int64_t>(random());
    ProcessMetadata message;
    message.kind = length % 2 == 0 ? Kind::kMeet : Kind::kGiveUp;
    message.key = {random(), length};
    message.launch_id = {1, 2, 3, 4, 5, 6, 7};
    message.settings = random();
    message.text = text;
    message.words = words.data();
    message.num_words = static_cast<int64_t>(words.size());
    Encode(message, &bytes);
    ProcessMetadata read;
    CHECK(Decode(bytes.data(), bytes.size(), &read));
    CHECK(read.kind == message.kind && read.key == message.key && read.settings == message.settings);
    CHECK(read.launch_id.run_id == 1 && read.launch_id.first_run == 2 && read.launch_id.generation == 3 &&
          read.launch_id.before == 4);
    CHECK(read.launch_id.copy == 5 && read.launch_id.copies == 6 && read.launch_id.round == 7);
    CHECK(read.text == text);
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

// What two processes that launch the same program the same number of times take for the same launch, whatever
// happens to the program in one of them.
void TestLaunches() {
  constexpr uint64_t kCall = 77;
  const auto agree = [](const std::vector<LaunchId>& a, const std::vector<LaunchId>& b) {
    CHECK_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < b.size(); ++j) CHECK_EQ(SameLaunch(a[i], b[j]), i == j);
    }
  };
  const auto launch = [](LaunchIds* launch_ids, int64_t site, int64_t first_run, std::vector<int64_t> order) {
    std::vector<LaunchId> found(order.size());
    for (const int64_t i : order) found[static_cast<size_t>(i)] = launch_ids->Count(kCall, site, 0, first_run + i);
    return found;
  };
  {  // Run ids that agree, and launches that overlap.
    LaunchIds a;
    LaunchIds b;
    const int64_t site_a = a.Open(kCall);
    const int64_t site_b = b.Open(kCall);
    agree(launch(&a, site_a, 900, {0, 1, 2, 3, 4}), launch(&b, site_b, 900, {1, 0, 4, 3, 2}));
  }
  {  // One of them has read the program from a cache.
    LaunchIds a;
    LaunchIds b;
    const int64_t site_a = a.Open(kCall);
    const int64_t site_b = b.Open(kCall);
    agree(launch(&a, site_a, 900, {0, 1, 2, 3, 4}), launch(&b, site_b, 1'000'000'000, {0, 2, 1, 4, 3}));
  }
  {  // One of them has compiled it once more beforehand; or other programs beside it.
    LaunchIds a;
    LaunchIds b;
    static_cast<void>(a.Open(kCall));
    const int64_t site_a = a.Open(kCall);
    static_cast<void>(b.Open(kCall + 1));
    const int64_t site_b = b.Open(kCall);
    agree(launch(&a, site_a, 5'000'000, {0, 1, 2, 3}), launch(&b, site_b, 1'000'000'000, {0, 1, 2, 3}));
  }
  {  // One of them forgets it half-way.
    LaunchIds a;
    LaunchIds b;
    const int64_t old_a = a.Open(kCall);
    const int64_t site_b = b.Open(kCall);
    std::vector<LaunchId> all_a = launch(&a, old_a, 900, {0, 1, 2});
    a.Close(kCall, old_a);
    const int64_t new_a = a.Open(kCall);
    for (const LaunchId& launch_id : launch(&a, new_a, 900, {0, 1, 2, 3})) all_a.push_back(launch_id);
    agree(all_a, launch(&b, site_b, 900, {0, 1, 2, 3, 4, 5, 6}));
  }
  {  // Both compile it anew for every launch.
    LaunchIds a;
    LaunchIds b;
    std::vector<LaunchId> all_a;
    std::vector<LaunchId> all_b;
    for (int64_t i = 0; i < 6; ++i) {
      all_a.push_back(a.Count(kCall, a.Open(kCall), 0, 1'000'000 * (i % 2)));
      all_b.push_back(b.Count(kCall, b.Open(kCall), 0, 1'000'000 * (i % 2)));
    }
    agree(all_a, all_b);
  }
  {  // Copies, in any order, and rounds of a loop.
    LaunchIds a;
    LaunchIds b;
    const int64_t sites_a[] = {a.Open(kCall), a.Open(kCall)};
    const int64_t sites_b[] = {b.Open(kCall), b.Open(kCall)};
    const auto run = [](LaunchIds* launch_ids, const int64_t* sites, bool swapped) {
      std::vector<LaunchId> found;
      for (int64_t run_id = 10; run_id < 14; ++run_id) {
        for (int round = 0; round < 3; ++round) {
          const LaunchId first = launch_ids->Count(kCall, sites[swapped ? 1 : 0], 0, run_id);
          const LaunchId second = launch_ids->Count(kCall, sites[swapped ? 0 : 1], 0, run_id);
          found.push_back(swapped ? second : first);
          found.push_back(swapped ? first : second);
        }
      }
      return found;
    };
    agree(run(&a, sites_a, false), run(&b, sites_b, true));
  }
  {  // One of them misses launches, the first among them, for a mistake that it goes on after.
    LaunchIds a;
    LaunchIds b;
    const int64_t site_a = a.Open(kCall);
    const int64_t site_b = b.Open(kCall);
    const std::vector<LaunchId> all = launch(&a, site_a, 900, {0, 1, 2, 3, 4, 5});
    std::vector<LaunchId> some;
    for (const int64_t i : {1, 3, 4}) some.push_back(b.Count(kCall, site_b, 0, 900 + i));
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < some.size(); ++j) CHECK_EQ(SameLaunch(all[i], some[j]), all[i].run_id == some[j].run_id);
    }
  }
  {  // Two programs that look alike, launched in different orders.
    LaunchIds a;
    LaunchIds b;
    const int64_t sites_a[] = {a.Open(kCall), a.Open(kCall)};
    const int64_t sites_b[] = {b.Open(kCall), b.Open(kCall)};
    std::vector<LaunchId> all_a = launch(&a, sites_a[0], 5'000'000, {0, 1, 2});
    for (const LaunchId& launch_id : launch(&a, sites_a[1], 7'000'000, {0, 1, 2})) all_a.push_back(launch_id);
    const std::vector<LaunchId> second = launch(&b, sites_b[1], 7'000'000, {0, 1, 2});
    std::vector<LaunchId> all_b = launch(&b, sites_b[0], 5'000'000, {0, 1, 2});
    all_b.insert(all_b.end(), second.begin(), second.end());
    agree(all_a, all_b);
  }
  {  // Whatever the numbers are, nothing overflows.
    std::mt19937_64 random(7);
    LaunchId a;
    LaunchId b;
    for (int i = 0; i < 1000; ++i) {
      for (int64_t* number : {&a.run_id, &a.first_run, &a.before, &b.run_id, &b.first_run, &b.before}) {
        *number = static_cast<int64_t>(random());
      }
      a.generation = static_cast<int64_t>(random() % 2);
      CHECK(SameLaunch(a, a) && SameLaunch(a, b) == SameLaunch(b, a));
    }
  }
  {  // Groups count for themselves, and old runs are forgotten, new ones are not.
    LaunchIds a;
    const int64_t site = a.Open(kCall);
    CHECK_EQ(a.Count(kCall, site, 0, 1).round, 0);
    CHECK_EQ(a.Count(kCall, site, 1, 1).round, 0);
    for (int64_t run_id = 2; run_id < 20'000; ++run_id) CHECK_EQ(a.Count(kCall, site, 0, run_id).round, 0);
    CHECK_EQ(a.Count(kCall, site, 0, 19'999).round, 1);
    CHECK_EQ(a.Count(kCall, site, 0, 1).round, 0);
    CHECK_EQ(a.Count(kCall, site, 0, 1).round, 1);
  }
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestMessages();
  fastjax::test::TestLaunches();
  return fastjax::test::Finish("launch_ids_test");
}
