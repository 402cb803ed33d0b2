// Transports over UCX whose peers die, are given up, come back, or are not who they should be.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/network/network_backend.h"
#include "backends/network/ucx/header.h"
#include "runtime/job_network.h"
#include "support/check.h"
#include "transport_rig.h"

namespace fastjax::test {
namespace {

constexpr size_t kLarge = size_t{1} << 27;

// Memory that a touch after Unmap kills the process for.
class Mapping {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void Forbid() { CHECK_EQ(mprotect(data_, bytes_, PROT_NONE), 0); }
  // Another thread is writing: that is what is waited for, and the thread sanitizer need not know.
  __attribute__((no_sanitize("thread"))) void WaitForFirstByte() {
    while (*static_cast<volatile char*>(data_) == 0) std::this_thread::yield();
  }
  volatile char* bytes() { return static_cast<volatile char*>(data_); }
  // `count` iovs, as rows of an operand are.
  std::vector<Iov> Iovs(size_t count) {
    std::vector<Iov> iovs;
    for (size_t i = 0; i < count; ++i) {
      iovs.push_back({static_cast<char*>(data_) + i * (bytes_ / count), bytes_ / count});
    }
    return iovs;
  }

 private:
  size_t bytes_;
  void* data_;
};

struct Child {
  pid_t pid = -1;
  int to = -1, from = -1;  // pipes
};

std::string ReadText(int descriptor) {
  uint32_t size = 0;
  if (read(descriptor, &size, sizeof(size)) != sizeof(size)) return "";
  std::string text(size, '\0');
  for (size_t at = 0; at < size;) {
    const ssize_t got = read(descriptor, text.data() + at, size - at);
    if (got <= 0) return "";
    at += static_cast<size_t>(got);
  }
  return text;
}

void WriteText(int descriptor, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  CHECK_EQ(write(descriptor, &size, sizeof(size)), static_cast<ssize_t>(sizeof(size)));
  CHECK_EQ(write(descriptor, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// What the child does: tells its addresses, takes ours, greets, sends rows that nobody has to receive, receives others
// that nobody sends, and stays.
[[noreturn]] void ChildMain(int in, int out, const std::string& transports) {
  if (ReadText(in) != "start") _exit(0);
  std::string addresses;
  if (TheTransport() != nullptr ||
      !OpenTheTransport(network::OpenTransport, OptionsOf(1, 2, transports), &addresses).empty())
    _exit(1);
  const auto transport = TheTransport();
  WriteText(out, addresses);
  if (!transport->AddPeer(0, ReadText(in)).empty()) _exit(2);
  // Not destroyed, as the transport's thread may still be at work when static destructors run.
  static auto& data = *new std::vector<std::byte>(kLarge, std::byte{5});
  static const auto& iovs = *new std::vector<Iov>(Whole(&data));
  static auto& ends = *new Ends;
  transport->Post([&] {
    transport->SendMessage(0, "here", 4);
    transport->Send({{0, 0, 0}, 1, iovs.data(), 1, &ends, 0});
    transport->Send({{0, 0, 0}, 2, iovs.data(), 1, &ends, 1});
  });
  if (ReadText(in) == "exit") std::exit(0);  // with the transport open
  while (true) pause();
}

Child Fork(const std::string& transports) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) std::abort();
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    close(to[1]);
    close(from[0]);
    ChildMain(to[0], from[1], transports);
  }
  close(to[0]);
  close(from[1]);
  child.to = to[1];
  child.from = from[0];
  return child;
}

// Kills the process that rows come from when the first of them have come.
class KillsSender final : public Ends {
 public:
  explicit KillsSender(pid_t sender) : sender_(sender) {}
  void OnMoved(int64_t cookie) override {
    Ends::OnMoved(cookie);
    kill(sender_, SIGKILL);
  }

 private:
  const pid_t sender_;
};

// A process that is killed while a receive from it is in flight, another has been met by nothing, and a send waits. It
// has been told nothing of this one's ways to read memory: its rows come in chunks.
void Kill(const std::string& transports, const Child& child, const Child& again) {
  std::string wrong;
  RecordingHandler handler;
  const auto transport = UcxTransport::Open(OptionsOf(0, 2, transports), &wrong);
  CHECK_EQ(wrong, "");
  transport->SetHandler(&handler);
  WriteText(child.to, "start");
  WriteText(child.to, transport->addresses());
  CHECK_EQ(transport->AddPeer(1, ReadText(child.from)), "");
  handler.WaitMessages(1);
  Mapping into(kLarge), other(kLarge);
  std::vector<std::byte> data(100000);
  const auto first = into.Iovs(1), second = other.Iovs(1), third = Whole(&data);
  KillsSender ends(child.pid);
  transport->Post([&] {
    transport->Receive({{1, 0, 0}, 1, first.data(), 1, &ends, 0});
    transport->Receive({{1, 0, 0}, 3, second.data(), 1, &ends, 1});
    transport->Send({{1, 0, 0}, 4, third.data(), 1, &ends, 2});
  });
  handler.WaitLost(1);
  ends.CheckGone({0, 1, 2});
  for (int i = 0; i < 3; ++i) CHECK_CONTAINS(ends.Of(i).message, "process 1 (");
  into.Forbid();
  CHECK_CONTAINS(transport->Trouble(1), "failed");
  CHECK(!Contains(transport->Describe(1), "failed"));
  // Nobody is there any more, and that is said, too.
  transport->Post([&] { transport->SendMessage(1, "hello?", 6); });
  handler.WaitLost(2);
  waitpid(child.pid, nullptr, 0);
  // Started again, with other addresses.
  WriteText(again.to, "start");
  WriteText(again.to, transport->addresses());
  CHECK_EQ(transport->AddPeer(1, ReadText(again.from)), "");
  handler.WaitMessages(2);
  WriteText(again.to, "exit");
  int status = -1;
  waitpid(again.pid, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(transport->Close(kToClose));
  for (const int pipe : {child.to, child.from, again.to, again.from}) close(pipe);
}

// Children are forked while there is one thread: this is the first test.
TEST(Killed) {
  const std::vector<Child> children = {Fork("tcp"), Fork("tcp"), Fork(""), Fork("")};
  Kill("tcp", children[0], children[1]);
  Kill("", children[2], children[3]);
}

// A large send is in flight, and beside it a send and a receive that nothing meets; then one side stops, and the other
// gives up and takes its memory away. Returns false if the large one had ended by then: this thread got no processor
// meanwhile.
bool GiveUpInFlight(const std::string& transports, bool sender_gives_up, size_t iovs) {
  ConnectedRig rig(2, transports);
  Exchange(&rig, 0, 1, 1);
  Ends ends;
  Mapping data(kLarge), into(kLarge);
  std::memset(const_cast<char*>(data.bytes()), 7, kLarge);
  rig.Send(0, 1, 2, data.Iovs(iovs), &ends, 0);
  rig.Receive(1, 0, 2, into.Iovs(iovs), &ends, 1);
  auto next = Pattern(100000, 3);
  std::vector<std::byte> into_next(next.size());
  rig.Send(0, 1, 3, Whole(&next), &ends, 2);
  rig.Receive(1, 0, 4, Whole(&into_next), &ends, 3);
  into.WaitForFirstByte();
  const int32_t quits = sender_gives_up ? 0 : 1;
  bool in_flight = false;
  {
    const Stopped stopped(&rig, 1 - quits);
    rig.On(quits, [&](UcxTransport* transport) {
      in_flight = !ends.Has(0) && !ends.Has(1);
      if (in_flight) transport->Disconnect(1 - quits);
    });
    if (in_flight) {
      ends.CheckGone({quits, 2 + quits});  // though the other is stopped
      CHECK_CONTAINS(ends.Of(quits).message, "given up");
      (sender_gives_up ? data : into).Forbid();
      rig.handler(quits).WaitTicks(2);
    }
  }
  if (!in_flight) {
    for (int i = 0; i < 2; ++i) ends.Wait(i);
    for (const int32_t process : {0, 1}) rig.Close(process);  // which ends the others
    return false;
  }
  // The other side is told, its request ends too, and both can go on.
  rig.handler(1 - quits).WaitRenewed(1);
  ends.CheckGone({1 - quits, 3 - quits});
  CHECK(rig.handler(quits).lost().empty());
  for (uint64_t tag = 10; tag < 14; ++tag) Exchange(&rig, tag % 2 == 0 ? 0 : 1, tag % 2 == 0 ? 1 : 0, tag);
  CHECK_EQ(ends.count(), 4);
  return true;
}

TRANSPORT_TEST(GivenUpInFlight) {
  for (const size_t iovs : {size_t{1}, size_t{16}}) {
    for (const bool sender_gives_up : {false, true}) {
      while (!GiveUpInFlight(transports, sender_gives_up, iovs)) {
      }
    }
  }
}

// Requests that nothing has met, on both sides, and what has arrived without a receive.
TRANSPORT_TEST(GivenUpWaiting) {
  TransportRig rig(2, transports);
  Ends ends;
  auto data = Pattern(50000, 1);
  std::vector<std::byte> into(50000);
  rig.Send(0, 1, 8, Whole(&data), &ends, 0);  // has not joined
  rig.On(0, [](UcxTransport* transport) { transport->Disconnect(1); });
  ends.CheckGone({0});
  rig.Introduce();
  rig.Send(0, 1, 9, Whole(&data), &ends, 1);
  rig.Receive(0, 1, 9, Whole(&into), &ends, 2);
  rig.Message(0, 1, "after them");
  rig.handler(1).WaitMessages(1);
  rig.On(0, [](UcxTransport* transport) { transport->Disconnect(1); });
  ends.CheckGone({1, 2});
  // What was sent before does not meet what is received after.
  auto fresh = Pattern(50000, 2);
  rig.Receive(1, 0, 9, Whole(&into), &ends, 3);
  rig.handler(1).WaitRenewed(1);
  if (ends.Has(3)) rig.Receive(1, 0, 9, Whole(&into), &ends, 4);
  const int64_t received = ends.Has(3) ? 4 : 3;
  rig.Send(0, 1, 9, Whole(&fresh), &ends, 5);
  ends.Wait(5);
  ends.Wait(received);
  if (ends.Of(received).ok()) CHECK(into == fresh);
}

TRANSPORT_TEST(ManyReconnections) {
  ConnectedRig rig(3, transports);
  for (int round = 0; round < 30; ++round) {
    const int32_t quits = round % 3 == 0 ? 0 : 1;
    Exchange(&rig, 0, 2, static_cast<uint64_t>(round));  // others are not concerned
    rig.On(quits, [&](UcxTransport* transport) { transport->Disconnect(1 - quits); });
    if (round % 4 == 0) rig.On(1 - quits, [&](UcxTransport* transport) { transport->Disconnect(quits); });
    // What is sent before the other side has heard of it is lost, and that is told.
    for (const int32_t from : {0, 1}) {
      const std::string text = "round " + std::to_string(round);
      const auto heard = [&] {
        const auto messages = rig.handler(1 - from).messages();
        return !messages.empty() && messages.back().second == text;
      };
      while (!heard()) {
        const size_t renewed = rig.handler(from).renewed().size();
        rig.Message(from, 1 - from, text);
        while (!heard() && rig.handler(from).renewed().size() == renewed) std::this_thread::yield();
      }
    }
    Exchange(&rig, 0, 1, static_cast<uint64_t>(1000 + round));
    Exchange(&rig, 1, 0, static_cast<uint64_t>(2000 + round));
  }
  CHECK(rig.handler(2).lost().empty());
}

TEST(DeclaredLost) {
  ConnectedRig rig(2, "tcp");
  Exchange(&rig, 0, 1, 1);
  Ends ends;
  std::vector<std::byte> into(10);
  rig.Receive(0, 1, 2, Whole(&into), &ends, 0);
  rig.transport(0).PeerLost(1, "its heart stopped");
  ends.CheckGone({0});
  CHECK_CONTAINS(ends.Of(0).message, " cannot take part: its heart stopped");
  rig.handler(0).WaitLost(1);
  CHECK_CONTAINS(rig.transport(0).Trouble(1), "its heart stopped");
  rig.Send(0, 1, 3, Whole(&into), &ends, 1);
  ends.CheckGone({1});
  rig.Message(0, 1, "x");
  rig.handler(0).WaitLost(2);
  // It was not.
  CHECK_EQ(rig.transport(0).AddPeer(1, rig.transport(1).addresses()), "");
  rig.handler(1).WaitRenewed(1);
  Exchange(&rig, 0, 1, 4);
}

TEST(Restarted) {
  ConnectedRig rig(2, "tcp");
  Exchange(&rig, 0, 1, 1);
  Ends ends;
  std::vector<std::byte> into(10);
  rig.Receive(0, 1, 2, Whole(&into), &ends, 0);
  std::string wrong;
  RecordingHandler handler;
  const auto other = UcxTransport::Open(OptionsOf(1, 2, "tcp"), &wrong);
  other->SetHandler(&handler);
  CHECK_EQ(rig.transport(0).AddPeer(1, other->addresses()), "");
  ends.Wait(0);
  rig.handler(0).WaitLost(1);
  CHECK_CONTAINS(ends.Of(0).message, "was restarted");
  rig.Message(0, 1, "to the new one");
  CHECK_EQ(other->AddPeer(0, rig.transport(0).addresses()), "");
  handler.WaitMessages(1);
  // The old one is a stranger now.
  rig.Message(1, 0, "from the old one");
  other->Post([&] { other->SendMessage(0, "from the new one", 16); });
  rig.handler(0).WaitMessages(1);
  CHECK_EQ(rig.handler(0).messages()[0].second, "from the new one");
  CHECK(other->Close(kToClose));
}

TRANSPORT_TEST(WrongSecret) {
  ConnectedRig rig(2, transports);
  TransportOptions options = OptionsOf(1, 2, transports);
  options.secret[7] ^= 1;
  std::string wrong;
  const auto stranger = UcxTransport::Open(options, &wrong);
  CHECK_EQ(stranger->AddPeer(0, rig.transport(0).addresses()), "");
  std::vector<std::byte> rows(100000), few(100), into(100);
  const std::string text(1 << 20, 'x');
  const auto large = Whole(&rows), small = Whole(&few);
  Ends ends, mine;
  rig.Receive(0, 1, 6, Whole(&into), &mine, 0);
  stranger->Post([&] {
    stranger->SendMessage(0, "x", 1);
    stranger->SendMessage(0, text.data(), text.size());
    stranger->Send({{0, 0, 0}, 5, large.data(), 1, &ends, 0});
    stranger->Send({{0, 0, 0}, 6, small.data(), 1, &ends, 1});
  });
  ends.Wait(1);
  constexpr auto kPart = static_cast<int64_t>(network::ucx::kMostData);
  const int64_t sent = 1 + (static_cast<int64_t>(text.size()) + kPart - 1) / kPart + 2;
  WaitUntil([&] { return rig.transport(0).State().refused >= sent; });
  CHECK(!mine.Has(0));
  auto data = Pattern(100, 3);
  rig.Send(1, 0, 6, Whole(&data), &mine, 1);
  mine.CheckAll(1);
  CHECK(into == data);
  CHECK(rig.handler(0).messages().empty());
  CHECK(!ends.Has(0));  // nobody has asked for it
  CHECK(stranger->Close(kToClose));
  ends.CheckGone({0});
  Exchange(&rig, 0, 1, 9);
}

// The sockets of this process, as the kernel numbers them.
std::set<std::string> Sockets() {
  std::set<std::string> sockets;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[64] = {};
    if (readlink((std::string("/proc/self/fd/") + entry->d_name).c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string text = target;
    if (text.rfind("socket:[", 0) == 0) sockets.insert(text.substr(8, text.size() - 9));
  }
  closedir(folder);
  return sockets;
}

// After each time that something is given up there are other connections, and old ones do not pile up.
TEST(NewConnections) {
  ConnectedRig rig(2, "tcp", 2);  // of whose NIC workers one pair is used
  Exchange(&rig, 0, 1, 1);
  Exchange(&rig, 1, 0, 2);
  size_t most = 0;
  for (uint64_t round = 0; round < 60; ++round) {
    const std::set<std::string> old = Sockets();
    const auto quits = static_cast<int32_t>(round % 2);
    const size_t told = rig.handler(1 - quits).renewed().size();
    rig.On(quits, [&](UcxTransport* transport) { transport->Disconnect(1 - quits); });
    rig.handler(1 - quits).WaitRenewed(told + 1);
    Exchange(&rig, 0, 1, 100 + round);
    Exchange(&rig, 1, 0, 200 + round);
    const std::set<std::string> now = Sockets();
    CHECK(!std::includes(old.begin(), old.end(), now.begin(), now.end()));
    if (round <= 20) most = std::max(most, now.size());
    if (round > 20) WaitUntil([most] { return Sockets().size() <= most; });  // closing takes a moment
  }
  CHECK(rig.handler(0).lost().empty() && rig.handler(1).lost().empty());
}

// A transport answers whatever its program does; one that is stopped does not, until it is given up.
TRANSPORT_TEST(Silence) {
  ConnectedRig rig(3, transports);
  Exchange(&rig, 0, 1, 1);
  Exchange(&rig, 0, 2, 1);
  const auto probe = [&] {
    rig.On(0, [](UcxTransport* transport) {
      for (const int32_t process : {-1, 0, 1, 2, 3}) transport->Probe(process);
    });
  };
  const auto silent = [&](int32_t process) {
    bool is = false;
    rig.On(0, [&](UcxTransport* transport) { is = transport->Silent(process); });
    return is;
  };
  for (const int32_t process : {-1, 0, 1, 2, 3}) CHECK(!silent(process));
  {
    const Stopped stopped(&rig, 1);
    probe();
    rig.handler(0).WaitTicks(6);
    while (silent(2)) rig.handler(0).WaitTicks(1);  // a slow machine
    CHECK(silent(1) && !silent(0) && !silent(2) && !silent(-1) && !silent(3));
    rig.On(0, [](UcxTransport* transport) { transport->Disconnect(1); });
    CHECK(!silent(1));
  }
  rig.handler(1).WaitRenewed(1);
  Exchange(&rig, 0, 1, 2);
  Exchange(&rig, 1, 0, 3);
  probe();
  rig.handler(0).WaitTicks(6);
  while (silent(1)) rig.handler(0).WaitTicks(1);
}

TEST(Refusals) {
  const auto refused = [](TransportOptions options) {
    std::string wrong;
    CHECK(UcxTransport::Open(std::move(options), &wrong) == nullptr);
    return wrong;
  };
  TransportOptions options = OptionsOf(0, 2, "");
  options.library = "/nonexistent/libucp.so";
  CHECK(refused(options).find("cannot load UCX: /nonexistent/libucp.so") == 0);
  options.library = "libm.so.6";
  CHECK(refused(options).find("libm.so.6 is not UCX's libucp") == 0);
  options.library = FASTJAX_OLD_UCX;
  CHECK_CONTAINS(refused(options), "is UCX 1.12.3; fastjax needs 1.13");
  CHECK_CONTAINS(refused(OptionsOf(0, 2, "nonsense")), "with transports 'nonsense'");
  options = OptionsOf(0, 2, "");
  options.nics = {"lo", "nosuchnic"};
  CHECK_CONTAINS(refused(options), "'nosuchnic'");
  CHECK_CONTAINS(refused(options), "lo");  // what there is
  CHECK_EQ(refused(OptionsOf(2, 2, "")), "process 2 of 2 does not exist");
}

}  // namespace
}  // namespace fastjax::test
