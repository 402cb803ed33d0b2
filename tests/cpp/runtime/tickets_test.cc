// Numbers that stand for objects: each for one, once.
#include "runtime/tickets.h"

#include <atomic>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "support/check.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

void TestOnce() {
  Tickets tickets;
  int object = 0, other = 0;
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const uint64_t a = tickets.Issue(&object);
    const uint64_t b = tickets.Issue(&other);
    CHECK(a != 0 && b != 0);
    CHECK(seen.insert(a).second && seen.insert(b).second);
    CHECK(tickets.Redeem(a) == &object);
    CHECK(tickets.Redeem(a) == nullptr);
    CHECK(tickets.Redeem(b) == &other);
  }
}

void TestWhatIsNone() {
  Tickets tickets;
  int object = 0;
  CHECK(tickets.Redeem(0) == nullptr);
  const uint64_t ticket = tickets.Issue(&object);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t wrong = random();
    if (wrong != ticket) CHECK(tickets.Redeem(wrong) == nullptr);
  }
  CHECK(tickets.Redeem(ticket + 1) == nullptr);
  CHECK(tickets.Redeem(ticket) == &object);
}

void TestThreads() {
  Tickets tickets;
  std::atomic<long> wrong{0};
  RunThreads(8, [&](int32_t /*thread*/) {
    std::vector<int> objects(20);
    for (int round = 0; round < 200; ++round) {
      std::vector<uint64_t> own;
      for (int& object : objects) own.push_back(tickets.Issue(&object));
      for (size_t i = 0; i < own.size(); ++i) {
        if (tickets.Redeem(own[i]) != &objects[i]) ++wrong;
      }
    }
  });
  CHECK_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestOnce();
  fastjax::test::TestWhatIsNone();
  fastjax::test::TestThreads();
  return fastjax::test::Finish("tickets_test");
}
