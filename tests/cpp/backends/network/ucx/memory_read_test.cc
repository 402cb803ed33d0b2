// Rows in the memory of other processes: what is offered, what is believed of an offer, and what a ticket tells.
#include "backends/network/ucx/memory_read.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace network::ucx;

constexpr Secret kSecret = {1, 2, 3};
constexpr Secret kOther = {3, 2, 1};

std::vector<std::byte> Written(const Ticket& ticket, const std::vector<Piece>& pieces, uint64_t number = 7) {
  const auto count = static_cast<int32_t>(pieces.size());
  std::vector<std::byte> words(OfferWords(count) * sizeof(uint64_t));
  WriteOffer(kSecret, number, ticket, pieces.data(), count, words.data());
  return words;
}

// What another process has in its memory, which has the same addresses there as here.
struct Shop {
  Ticket ticket;
  uint64_t read_probe = 11;
  std::vector<int> goods = std::vector<int>(50000);
};

class Neighbour {
 public:
  explicit Neighbour(Shop* shop) {
    pid_ = fork();
    if (pid_ > 0) return;
    for (size_t i = 0; i < shop->goods.size(); ++i) shop->goods[i] = static_cast<int>(i);
    shop->read_probe = 12;
    shop->ticket.Give(7);
    raise(SIGSTOP);
    shop->ticket.TakeAway();
    raise(SIGSTOP);
    _exit(0);
  }
  ~Neighbour() { End(); }
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

void TestReading() {
  Shop shop;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < 100; ++i) pieces.push_back({shop.goods.data() + 500 * i, 4 * (i % 7 == 0 ? 0 : 5 * i)});
  size_t bytes = 0;
  std::vector<int> expected;
  for (size_t i = 0; i < pieces.size(); ++i) {
    bytes += pieces[i].bytes;
    for (size_t k = 0; k < pieces[i].bytes / 4; ++k) expected.push_back(static_cast<int>(500 * i + k));
  }
  const auto words = Written(shop.ticket, pieces);
  CHECK(Reading::Genuine(kSecret, words.data(), words.size(), bytes));
  Neighbour neighbour(&shop);
  neighbour.WaitUntilStopped();
  std::vector<int> into(expected.size());
  std::vector<Piece> to = {{into.data(), 4}, {into.data() + 1, 0}, {into.data() + 1, bytes - 4}};
  ReadProbe read_probe{};
  read_probe.pid = neighbour.pid();
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
  neighbour.GoOn();
  neighbour.WaitUntilStopped();
  CHECK(!good());  // had it read only now
  read();
  CHECK(!good());
  neighbour.End();
  read();
  CHECK(!good());
  CHECK(into == std::vector<int>(into.size(), -1));
}

void TestWhatIsGenuine() {
  const Ticket ticket;
  std::vector<std::byte> rows(100);
  const auto words = Written(ticket, {{rows.data(), 60}, {rows.data() + 60, 40}});
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
  const std::vector<Piece> many(kMostPieces + 1, Piece{rows.data(), 1});
  const auto too_many = Written(ticket, many);
  CHECK(!Reading::Genuine(kSecret, too_many.data(), too_many.size(), many.size()));
}

void TestLandmarks() {
  Shop shop;
  const ReadProbe own = ReadProbeAt(kSecret, &shop.read_probe);
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
  Neighbour neighbour(&shop);
  neighbour.WaitUntilStopped();
  other = own;
  other.pid = neighbour.pid();
  CHECK(!CanRead(own, other));
  other.value = 12;
  CHECK(CanRead(own, other));
  neighbour.End();
  CHECK(!CanRead(own, other));
}

void TestTransports() {
  for (const char* const those : {"", "all", "tcp,sm,self", "shm", "cma,tcp"}) CHECK(MayUseMemory(those));
  for (const char* const those : {"tcp", "tcp,self", "^sm", "small,tcp", "rc"}) CHECK(!MayUseMemory(those));
}

}  // namespace
}  // namespace fastjax::test

int main() {
  using namespace fastjax::test;
  TestReading();
  TestWhatIsGenuine();
  TestLandmarks();
  TestTransports();
  return Finish("memory_read_test");
}
