// How a thread waits for NCCL's own threads: it yields for a while, then it sleeps, and ends at its deadline. Counted
// by a clock of the test's, which nothing but waiting moves.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/nccl/communicators.h"
#include "backends/gpu/nccl/poll.h"
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/nccl_rig.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

using gpu::MessageEnd;
using gpu::nccl::Clock;
using gpu::nccl::Communicators;
using gpu::nccl::Library;
using gpu::nccl::Load;
using gpu::nccl::Poll;
using gpu::nccl::UniqueId;
using gpu::nccl::Waiter;

constexpr std::chrono::microseconds kYield{10};
constexpr std::chrono::microseconds kSleep{100};  // that of 50 us takes
constexpr int kYields = 30;                       // 300 us

class Counter final : public Waiter {
 public:
  Clock::time_point Now() const override { return now_; }
  void Yield() const override {
    ++yields_;
    now_ += kYield;
  }
  void Sleep(std::chrono::microseconds time) const override {
    CHECK_EQ(time.count(), 50);
    ++sleeps_;
    now_ += kSleep;
  }
  void CheckWaited(int yields, int sleeps) {
    CHECK_EQ(yields_, yields);
    CHECK_EQ(sleeps_, sleeps);
    yields_ = sleeps_ = 0;
  }

 private:
  mutable Clock::time_point now_{std::chrono::hours(1)};
  mutable int yields_ = 0;
  mutable int sleeps_ = 0;
};

TEST(Poll) {
  Counter counter;
  const Clock::time_point deadline = counter.Now() + std::chrono::milliseconds(1);
  const Poll poll(&counter);
  for (int i = 0; i < kYields; ++i) CHECK(poll.Pause(deadline));
  counter.CheckWaited(kYields, 0);
  for (int i = 0; i < 7; ++i) CHECK(poll.Pause(deadline));
  counter.CheckWaited(0, 7);
  CHECK(!poll.Pause(deadline));
  counter.CheckWaited(0, 0);
  // A deadline that comes before the yields are over.
  const Poll second(&counter);
  CHECK(second.Pause(counter.Now() + kYield));
  CHECK(!second.Pause(counter.Now()));
  counter.CheckWaited(1, 0);
}

// One of two processes.
class Process {
 public:
  Process(const Library* library, const UniqueId& id, int32_t rank)
      : rank_(rank), gpu_(LastingGpu(DriverWithoutPeers())), stream_(rank) {
    CHECK_EQ(Communicators::Make(library, gpu_, 2, {{rank, rank}}, id, 1000, &communicators_, &counter_).message, "");
  }
  ~Process() {
    communicators_.reset();  // which gives up what is on the stream
    stream_.Synchronize();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Status Swap(int64_t timeout_ms) {
    const auto bytes = static_cast<int64_t>(out_.size());
    const MessageEnd messages[] = {{true, rank_, 1 - rank_, 0, out_.data(), bytes, 0},
                                   {false, rank_, 1 - rank_, 0, in_.data(), bytes, 0}};
    return communicators_->Move(messages, 2, {stream_.stream}, timeout_ms);
  }
  void Close() { communicators_->Close(); }
  Counter& counter() { return counter_; }

 private:
  const int32_t rank_;
  const std::shared_ptr<gpu::Gpu> gpu_;
  Counter counter_;
  std::unique_ptr<Communicators> communicators_;
  const OwnStream stream_;
  std::vector<std::byte> out_ = std::vector<std::byte>(100);
  std::vector<std::byte> in_ = std::vector<std::byte>(100);
};

class Two {
 public:
  Two() {
    Fake().late = Fake().asking = 0;
    std::string wrong;
    const Library* const library = Load(FakeLibrary(), &wrong);
    CHECK_EQ(wrong, "");
    UniqueId id;
    CHECK_EQ(static_cast<int>(library->GetUniqueId(&id)), 0);
    RunThreads(2, [&](int32_t rank) { processes_[rank] = std::make_unique<Process>(library, id, rank); });
  }

  // `use` by each on a thread of its own.
  template <typename Use>
  void Each(const Use& use) {
    RunThreads(2, [&](int32_t rank) { use(processes_[rank].get()); });
  }

 private:
  std::unique_ptr<Process> processes_[2];
};

// Each wait yields anew: one that was long does not make the next one sleep.
TEST(Waits) {
  for (const int polls : {0, 1, kYields, kYields + 1, 1000}) {
    const Context context(std::to_string(polls) + " polls");
    const int yields = polls < kYields ? polls : kYields;
    Fake().polls = polls;
    Two().Each([&](Process* process) {
      process->counter().CheckWaited(yields, polls - yields);  // for the communicator
      for (int i = 0; i < 3; ++i) {
        CHECK_EQ(process->Swap(1000).message, "");
        process->counter().CheckWaited(yields, polls - yields);
      }
      process->Close();
      process->counter().CheckWaited(yields, polls - yields);
    });
  }
}

TEST(Deadline) {
  Fake().polls = 5;
  Two two;
  Fake().polls = 1000;
  two.Each([&](Process* process) {
    process->counter().CheckWaited(5, 0);
    const Status status = process->Swap(5);
    CHECK(status.code == Code::kDeadlineExceeded);
    CHECK_EQ(status.message, "NCCL could not move messages in time: other processes did not come to it.");
    process->counter().CheckWaited(kYields, 47);  // 300 us and 4.7 ms
  });
}

TEST(NothingIsLeft) {
  CHECK_EQ(Fake().live.load(), 0);
  CHECK_EQ(Fake().mistakes.load(), 0);
}

}  // namespace
}  // namespace fastjax::test
