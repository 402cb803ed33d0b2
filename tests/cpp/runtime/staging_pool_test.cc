// Staging memory: large enough, used again, and not more of it kept than is of use.
#include "runtime/staging_pool.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "support/allocations.h"
#include "support/check.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

// Nothing but staging buffers is an array here.
TEST(Reuse) {
  StagingPool pool;
  StagingPool::Buffer small = pool.Take(1000);
  StagingPool::Buffer large = pool.Take(5000);
  CHECK(small.data() != nullptr && small.bytes() >= 1000);
  CHECK(large.data() != nullptr && large.bytes() >= 5000);
  const std::byte* const of_small = small.data();
  const std::byte* const of_large = large.data();
  pool.Return(std::move(large));
  pool.Return(std::move(small));
  // The smallest that is large enough.
  StagingPool::Buffer first = pool.Take(1000);
  CHECK(first.data() == of_small);
  StagingPool::Buffer second = pool.Take(10);
  CHECK(second.data() == of_large);
  CHECK_GE(second.bytes(), 5000);
  CHECK_EQ(Arrays(), 2);
  pool.Return(std::move(first));
  pool.Return(std::move(second));
  // A larger one takes the place of one that is too small.
  StagingPool::Buffer larger = pool.Take(50'000);
  CHECK_GE(larger.bytes(), 50'000);
  CHECK_EQ(Arrays(), 2);
  pool.Return(std::move(larger));
  pool.Return({});
  CHECK(pool.Take(50'000).data() != nullptr);
}

TEST(Bounded) {
  StagingPool pool;
  std::vector<StagingPool::Buffer> buffers;
  for (int i = 0; i < 50; ++i) buffers.push_back(pool.Take(100 + i));
  CHECK_EQ(Arrays(), 50);
  for (StagingPool::Buffer& buffer : buffers) pool.Return(std::move(buffer));
  buffers.clear();
  CHECK_LE(Arrays(), 8);
  CHECK_GT(Arrays(), 0);
}

TEST(NoMemory) {
  StagingPool pool;
  auto no_memory = std::make_unique<NoStagingMemory>();
  StagingPool::Buffer none = pool.Take(100);
  CHECK(none.data() == nullptr);
  CHECK_EQ(none.bytes(), 0);
  no_memory = nullptr;
  pool.Return(std::move(none));
  const StagingPool::Buffer some = pool.Take(100);
  CHECK(some.data() != nullptr);
}

// A buffer belongs to one thread at a time.
TEST(Threads) {
  StagingPool pool;
  std::atomic<long> wrong{0};
  RunThreads(8, [&](int32_t thread) {
    std::mt19937_64 random(static_cast<uint64_t>(thread));
    for (int round = 0; round < 300; ++round) {
      const auto bytes = static_cast<int64_t>(1 + random() % 3000);
      StagingPool::Buffer buffer = pool.Take(bytes);
      if (buffer.bytes() < bytes) ++wrong;
      std::memset(buffer.data(), thread, static_cast<size_t>(bytes));
      for (int64_t i = 0; i < bytes; ++i) {
        if (buffer.data()[i] != static_cast<std::byte>(thread)) ++wrong;
      }
      pool.Return(std::move(buffer));
    }
  });
  CHECK_EQ(wrong.load(), 0);
  CHECK_LE(Arrays(), 8);
}

TEST(NothingIsLeft) { CHECK_EQ(Arrays(), 0); }

}  // namespace
}  // namespace fastjax::test
