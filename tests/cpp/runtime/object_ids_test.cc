// Ids of objects: each is of one object, and is found once.
#include "runtime/object_ids.h"

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
  ObjectIds ids;
  int object = 0, other = 0;
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const uint64_t a = ids.Add(&object);
    const uint64_t b = ids.Add(&other);
    CHECK(a != 0 && b != 0);
    CHECK(seen.insert(a).second && seen.insert(b).second);
    CHECK(ids.Take(a) == &object);
    CHECK(ids.Take(a) == nullptr);
    CHECK(ids.Take(b) == &other);
  }
}

void TestWhatIsNone() {
  ObjectIds ids;
  int object = 0;
  CHECK(ids.Take(0) == nullptr);
  const uint64_t id = ids.Add(&object);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t wrong = random();
    if (wrong != id) CHECK(ids.Take(wrong) == nullptr);
  }
  CHECK(ids.Take(id + 1) == nullptr);
  CHECK(ids.Take(id) == &object);
}

void TestThreads() {
  ObjectIds ids;
  std::atomic<long> wrong{0};
  RunThreads(8, [&](int32_t /*thread*/) {
    std::vector<int> objects(20);
    for (int round = 0; round < 200; ++round) {
      std::vector<uint64_t> own;
      for (int& object : objects) own.push_back(ids.Add(&object));
      for (size_t i = 0; i < own.size(); ++i) {
        if (ids.Take(own[i]) != &objects[i]) ++wrong;
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
  return fastjax::test::Finish("object_ids_test");
}
