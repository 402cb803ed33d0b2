// Rows in the memory of other processes: what is offered, what is believed of an offer, and what a lease tells.
#include "backends/network/ucx/memory_read.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace network::ucx;

constexpr Secret kSecret = {1, 2, 3};
constexpr Secret kOther = {3, 2, 1};

std::vector<std::byte> Written(const Lease& lease, const std::vector<Iov>& iovs, uint64_t number = 7) {
  const auto count = static_cast<int32_t>(iovs.size());
  std::vector<std::byte> words(OfferWords(count) * sizeof(uint64_t));
  WriteOffer(kSecret, number, lease, iovs.data(), count, words.data());
  return words;
}

// What another process has in its memory, which has the same addresses there as here.
struct OtherMemory {
  Lease lease;
  uint64_t read_probe = 11;
  std::vector<int> rows = std::vector<int>(50000);
};

class OtherProcess {
 public:
  explicit OtherProcess(OtherMemory* memory) {
    pid_ = fork();
    if (pid_ > 0) return;
    for (size_t i = 0; i < memory->rows.size(); ++i) memory->rows[i] = static_cast<int>(i);
    memory->read_probe = 12;
    memory->lease.Set(7);
    raise(SIGSTOP);
    memory->lease.Clear();
    raise(SIGSTOP);
    _exit(0);
  }
  ~OtherProcess() { End(); }
  void WaitUntilStopped() const { waitpid(pid_, nullptr, WUNTRACED); }
  void GoOn() const { kill(pid_, SIGCONT); }
  void End() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(Reading) {
  OtherMemory memory;
  std::vector<Iov> iovs;
  for (size_t i = 0; i < 100; ++i) iovs.push_back({memory.rows.data() + 500 * i, 4 * (i % 7 == 0 ? 0 : 5 * i)});
  size_t bytes = 0;
  std::vector<int> expected;
  for (size_t i = 0; i < iovs.size(); ++i) {
    bytes += iovs[i].bytes;
    for (size_t k = 0; k < iovs[i].bytes / 4; ++k) expected.push_back(static_cast<int>(500 * i + k));
  }
  const auto words = Written(memory.lease, iovs);
  CHECK(Reading::Genuine(kSecret, words.data(), words.size(), bytes));
  OtherProcess process(&memory);
  process.WaitUntilStopped();
  std::vector<int> into(expected.size());
  std::vector<Iov> to = {{into.data(), 4}, {into.data() + 1, 0}, {into.data() + 1, bytes - 4}};
  ReadProbe read_probe{};
  read_probe.pid = process.pid();
  Reading reading;
  const auto read = [&] {
    std::fill(into.begin(), into.end(), -1);
    reading.Prepare(read_probe, words.data(), to.data(), static_cast<int32_t>(to.size()));
    reading.job()->RunInline();
  };
  const auto good = [&] {
    Reading* const alone = &reading;
    Reading::Check(&alone, 1);
    return reading.good();
  };
  read();
  CHECK(good());
  CHECK(into == expected);
  process.GoOn();
  process.WaitUntilStopped();
  CHECK(!good());  // had it read only now
  read();
  CHECK(!good());
  process.End();
  read();
  CHECK(!good());
  CHECK(into == std::vector<int>(into.size(), -1));
}

TEST(WhatIsGenuine) {
  const Lease lease;
  std::vector<std::byte> rows(100);
  const auto words = Written(lease, {{rows.data(), 60}, {rows.data() + 60, 40}});
  CHECK(Reading::Genuine(kSecret, words.data(), words.size(), 100));
  CHECK(!Reading::Genuine(kOther, words.data(), words.size(), 100));
  CHECK(!Reading::Genuine(kSecret, nullptr, words.size(), 100));
  CHECK(!Reading::Genuine(kSecret, words.data(), words.size(), 99));
  for (size_t length = 0; length < words.size(); ++length) {
    CHECK(!Reading::Genuine(kSecret, words.data(), length, 100));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    auto damaged = words;
    damaged[i] ^= std::byte{1};
    CHECK(!Reading::Genuine(kSecret, damaged.data(), damaged.size(), 100));
  }
  const std::vector<Iov> many(kMostIovs + 1, Iov{rows.data(), 1});
  const auto too_many = Written(lease, many);
  CHECK(!Reading::Genuine(kSecret, too_many.data(), too_many.size(), many.size()));
}

TEST(ReadProbes) {
  OtherMemory memory;
  const ReadProbe own = ReadProbeAt(kSecret, &memory.read_probe);
  CHECK(CanRead(own, own));
  ReadProbe other = own;
  other.value += 1;
  CHECK(!CanRead(own, other));  // another process has that number now
  other = own;
  other.host += 1;
  CHECK(!CanRead(own, other));
  other = own;
  other.at = 8;
  CHECK(!CanRead(own, other));
  CHECK(!CanRead(ReadProbe{}, ReadProbe{}));  // neither wants to
  OtherProcess process(&memory);
  process.WaitUntilStopped();
  other = own;
  other.pid = process.pid();
  CHECK(!CanRead(own, other));
  other.value = 12;
  CHECK(CanRead(own, other));
  process.End();
  CHECK(!CanRead(own, other));
}

TEST(Transports) {
  for (const char* const those : {"", "all", "tcp,sm,self", "shm", "cma,tcp"}) CHECK(MayUseMemory(those));
  for (const char* const those : {"tcp", "tcp,self", "^sm", "small,tcp", "rc"}) CHECK(!MayUseMemory(those));
}

}  // namespace
}  // namespace fastjax::test
