// What goes wrong with NCCL: every wait ends, the next exchange is told, and the one after it works.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/gpu/gpu_rig.h"
#include "support/gpu/nccl_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using gpu::Caller;
using gpu::Layout;
using gpu::MessageEnd;
using gpu::nccl::Channel;
using gpu::nccl::Fabric;
using gpu::nccl::kRemoteError;
using gpu::nccl::kSystemError;
using gpu::nccl::ShareId;
using gpu::nccl::UniqueId;

constexpr int64_t kShortMs = 1000;  // long enough for all that must not be late
constexpr int32_t kDevices = 4;     // of an exchange in one process

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Holds the streams of exchanges until the next launch of each has been put on them.
class HeldStreams {
 public:
  HeldStreams(const std::vector<StreamedExchange*>& exchanges, std::function<void()> before_streams) {
    std::vector<std::pair<StreamedExchange*, int64_t>> awaited;
    for (StreamedExchange* const exchange : exchanges) {
      awaited.emplace_back(exchange, exchange->enqueued());
      for (int32_t i = 0; i < kDevices; ++i) exchange->Compute(i, computation_);
    }
    // One thread puts a launch on all its streams before it tells the first caller.
    thread_ = std::thread([computation = computation_, awaited, before_streams = std::move(before_streams)] {
      for (const auto& [exchange, before] : awaited) {
        while (exchange->enqueued() == before) std::this_thread::yield();
      }
      before_streams();
      computation->LetGo();
    });
  }
  ~HeldStreams() { thread_.join(); }
  HeldStreams(const HeldStreams&) = delete;
  HeldStreams& operator=(const HeldStreams&) = delete;

 private:
  const std::shared_ptr<Computation> computation_ = std::make_shared<Computation>();
  std::thread thread_;
};

// An exchange of four devices, all of which talk to all.
struct Four {
  explicit Four(int64_t timeout_ms, uint64_t seed, const kernels::Driver* driver = DriverWithoutPeers())
      : random(seed), setting(driver) {
    options.topology = MakeTopology(1, kDevices);
    options.scheduler = planner::Scheduler::kDirect;
    site = MakeSite(1, kDevices, timeout_ms, &random);
    exchange = setting.Open(site, options.exchange);
    rig = std::make_unique<Rig>(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  }
  Outcomes Run() {
    rig->Reset();
    return rig->Run(exchange.get(), ++run_id, true);
  }
  // Streams begin when the whole launch is on them. If they began before, the watchdog could see one fail while the
  // host still puts the next stages on it, and the host would then refuse these.
  Outcomes RunInFull(const std::function<void()>& before_streams = [] {}) {
    const HeldStreams held({exchange.get()}, before_streams);
    return Run();
  }
  void CheckWorks() {
    const Outcomes outcomes = Run();
    for (int32_t i = 0; i < outcomes.count(); ++i) CHECK_EQ(outcomes.status(i).message, "");
    CHECK(rig->IsRight());
  }

  std::mt19937_64 random;
  NcclSetting setting;
  RigOptions options;
  std::shared_ptr<CallSite> site;
  std::unique_ptr<StreamedExchange> exchange;
  std::unique_ptr<Rig> rig;
  int64_t run_id = 0;
};

// What NCCL refuses, it refuses once.
TEST(Refusals) {
  Four four(kNoTimeoutMs, 2);
  for (auto* failure : {&Fake().fail_id, &Fake().fail_init, &Fake().fail_group_end}) {
    *failure = kSystemError;
    const Outcomes outcomes = four.Run();
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK_CONTAINS(outcomes.status(i).message, "exchange over axis 'x' (channel 7): NCCL could not make ");
      CHECK_CONTAINS(outcomes.status(i).message, ": unhandled system error (2)");
      CHECK_CONTAINS(outcomes.status(i).message, "NCCL_DEBUG=WARN");
    }
    CHECK(four.rig->IsUntouched());
    CHECK(AreLive(0));
  }
  four.CheckWorks();
  for (auto* failure : {&Fake().fail_send, &Fake().fail_group_end}) {
    const int before = Fake().aborted;
    *failure = kSystemError;
    const Outcomes outcomes = four.Run();
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK_CONTAINS(outcomes.status(i).message,
                     "exchange over axis 'x' (channel 7): NCCL could not move messages: unhandled system error (2), "
                     "last 'as the test wants it'");
    }
    CHECK(four.rig->GuardsAreWhole());
    four.CheckWorks();
    CHECK_EQ(Fake().aborted.load(), before + 4);
    CHECK(AreLive(4));
  }
}

// Whatever call of the driver fails, the next exchange works.
TEST(DriverFaults) {
  static const FaultyDriver faulty;  // what is aborted in the background uses it to the end
  static const kernels::Driver driver = WithoutPeers(*faulty.get());
  int64_t failed = 0;
  bool fails = true;
  for (int64_t calls = 0; fails; ++calls) {
    const Context context("call " + std::to_string(calls) + " fails");
    Four four(kNoTimeoutMs, 3, &driver);
    FaultyDriver::FailAfter(calls);
    const Outcomes outcomes = four.Run();
    fails = FaultyDriver::Stop();
    // What fails on the way out, when the thread's device is chosen again, harms nobody.
    const bool whole = outcomes.all_ok();
    CHECK(fails || whole);
    failed += whole ? 0 : 1;
    for (int32_t i = 0; i < outcomes.count() && !whole; ++i) {
      CHECK_CONTAINS(outcomes.status(i).message, ": out of memory (2)");
    }
    CHECK(four.rig->GuardsAreWhole());
    CHECK(!whole || four.rig->IsRight());
    four.CheckWorks();
  }
  CHECK_GT(failed, 50);
}

// A message that never arrives: streams go on after the limit, whoever comes next is told once, and then all is well.
TEST(LostMessage) {
  Four four(kShortMs, 4);
  four.CheckWorks();
  Fake().lost_sends = 1;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(four.RunInFull().all_ok());  // for the host
  CHECK_GE(SecondsSince(begin), 0.9);
  CHECK(four.rig->GuardsAreWhole());
  CHECK(!four.rig->IsRight());
  const Outcomes outcomes = four.Run();
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    const std::string message = outcomes.status(i).message;
    CHECK(outcomes.status(i).code == Code::kDeadlineExceeded);
    CHECK_CONTAINS(message, "exchange over axis 'x' (channel 7): device ");
    CHECK_CONTAINS(message, " waited 1.0 s for messages of stage 1, from or to device ");
    CHECK_CONTAINS(message, "raise the limit with fastjax.options(timeout=...)");
  }
  CHECK(four.rig->IsUntouched());
  four.CheckWorks();
  CHECK(AreLive(4));
}

TEST(AsynchronousError) {
  Four four(kNoTimeoutMs, 5);
  four.CheckWorks();
  Fake().lost_sends = 1;  // so that there is time to look
  CHECK(four.RunInFull([] { Fake().async_error = kRemoteError; }).all_ok());
  Fake().async_error = 0;
  Fake().lost_sends = 0;  // still 1 if the communicators were aborted before the first send
  const Outcomes outcomes = four.Run();
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    CHECK_CONTAINS(outcomes.status(i).message,
                   "exchange over axis 'x' (channel 7): NCCL could not move messages: remote process exited or there "
                   "was a network error (6)");
  }
  four.CheckWorks();
}

// Both of two call sites that share communicators lose what they had in flight, and both are told.
TEST(OthersAreTold) {
  Four four(kShortMs, 6);
  auto other_site = std::make_shared<CallSite>(*four.site);
  other_site->channel = 8;
  const auto other = four.setting.Open(other_site, four.options.exchange);
  Rig rig(other_site, four.options, MakeCases(four.options.topology, 6).back().traffic, &four.random);
  four.CheckWorks();
  rig.CheckRun(other.get(), 1, false);
  Fake().lost_sends = 1;
  {
    const HeldStreams held({four.exchange.get(), other.get()}, [] {});
    RunThreads(2, [&](int32_t i) {
      Rig& own = i == 0 ? *four.rig : rig;
      own.Reset();
      CHECK(own.Run(i == 0 ? four.exchange.get() : other.get(), 100, true).all_ok());
    });
  }
  const std::string first = four.Run().status(0).message;
  const std::string second = rig.Run(other.get(), 101, true).status(0).message;
  CHECK_CONTAINS(first + second, " waited 1.0 s for messages of stage 1");
  // The other one has happened before, was in flight, or was refused since then: if it was undone, it has been told.
  CHECK(first.empty() || Contains(first, "exchange over axis 'x' (channel 7): "));
  CHECK(second.empty() || Contains(second, "exchange over axis 'x' (channel 8): "));
  four.CheckWorks();
  rig.Reset();
  rig.CheckRun(other.get(), 102, true);
}

// ---- one process of several, by itself: what it puts on streams, message by message

// Hands unique ids from process to process.
class IdExchange {
 public:
  explicit IdExchange(int64_t timeout_ms) : timeout_(timeout_ms) {}
  Status operator()(const CallSite&, int32_t, const std::string& name, int64_t generation, bool makes, UniqueId* id) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::pair<std::string, int64_t> key(name, generation);
    if (makes) {
      ids_[key] = *id;
      changed_.notify_all();
      return Status::Ok();
    }
    if (!changed_.wait_for(lock, timeout_, [&] { return ids_.count(key) != 0; })) {
      return Status::Deadline("no process has shared an id.");
    }
    *id = ids_[key];
    return Status::Ok();
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, int64_t>, UniqueId> ids_;
};

// A process with one device, of a group of as many as there are processes.
class Process {
 public:
  Process(const std::shared_ptr<CallSite>& site, int32_t rank, ShareId share_id)
      : site_(site),
        rank_(rank),
        gpu_(LastingGpu(DriverWithoutPeers())),
        fabric_(gpu_, FakeLibrary(), std::move(share_id)),
        stream_(rank),
        out_(1024, std::byte(rank)),
        in_(1024) {
    caller_.device = rank;
    caller_.stream = stream_.stream;
    layout_.call_of.assign(static_cast<size_t>(site->group_size), -1);
    layout_.call_of[static_cast<size_t>(rank)] = 0;
    layout_.domain_of.assign(static_cast<size_t>(site->group_size), 0);
    layout_.calls = {&caller_};
  }
  ~Process() {
    LetGo();
    channel_.reset();
    Synchronize();  // what is queued still writes the buffers, also where it has been given up
  }

  // Swaps memory with another process.
  Status Swap(int32_t peer) {
    fastjax_gpu_driver()->SetDevice(rank_);  // as whoever calls has
    Status status = fabric_.FindDomains(*site_, &layout_);
    for (int32_t rank = 0; rank < site_->group_size; ++rank) {
      const bool same = layout_.domain_of[static_cast<size_t>(rank)] == layout_.domain_of[static_cast<size_t>(rank_)];
      CHECK_EQ(same, rank == rank_);
    }
    if (channel_ == nullptr) channel_ = std::make_unique<Channel>(*site_, 0);
    if (status.ok()) status = fabric_.Connect(*site_, 0, layout_, channel_.get());
    if (!status.ok()) return status;
    const MessageEnd messages[] = {{true, rank_, peer, 0, out_.data(), 1024, 2},
                                   {false, rank_, peer, 0, in_.data(), 1024, 2}};
    return channel_->Move(messages, 2, {stream_.stream});
  }
  void Synchronize() {
    fastjax_gpu_driver()->SetDevice(rank_);
    stream_.Synchronize();
  }
  bool Got(int32_t peer) const { return in_ == std::vector<std::byte>(1024, std::byte(peer)); }

  // The stream computes until it is let go.
  void Compute() { computations_.emplace_back(std::make_unique<Computation>())->PutOn(stream_.stream); }
  void LetGo() {
    for (const auto& computation : computations_) computation->LetGo();
  }
  void Close() { channel_.reset(); }

 private:
  const std::shared_ptr<CallSite> site_;
  const int32_t rank_;
  const std::shared_ptr<gpu::Gpu> gpu_;
  Fabric fabric_;
  std::unique_ptr<Channel> channel_;
  std::vector<std::unique_ptr<Computation>> computations_;
  OwnStream stream_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  Caller caller_;
  Layout layout_;
};

struct Pair {
  explicit Pair(int64_t timeout_ms)
      : site(MakeSite(1, 2, timeout_ms)),
        id_exchange(timeout_ms),
        a(site, 0, std::ref(id_exchange)),
        b(site, 1, std::ref(id_exchange)) {
    site->process_of = {0, 1};
    site->rail_of = {0, 0};
  }

  void CheckWorks() {
    RunThreads(2, [&](int32_t i) {
      Process& own = i == 0 ? a : b;
      CHECK_EQ(own.Swap(1 - i).message, "");
      own.Synchronize();
      CHECK(own.Got(1 - i));
    });
  }

  std::shared_ptr<CallSite> site;
  IdExchange id_exchange;
  Process a;
  Process b;
};

TEST(Processes) {
  {
    Pair pair(kNoTimeoutMs);
    for (int i = 0; i < 100; ++i) pair.CheckWorks();
    CHECK(AreLive(2));
  }
  CHECK(AreLive(0));
}

// One process stays away: the other waits for it no longer than the limit, wherever it waits.
TEST(AbsentProcess) {
  Pair pair(kShortMs);
  Status status = pair.a.Swap(1);
  CHECK(status.code == Code::kDeadlineExceeded);
  CHECK_CONTAINS(status.message,
                 "exchange over axis 'x' (channel 7): NCCL could not make a communicator in time: other");
  CHECK(AreLive(0));
  status = Pair(kShortMs).b.Swap(0);
  CHECK_CONTAINS(status.message, "exchange over axis 'x' (channel 7): no process has shared an id");

  Pair other(kShortMs);
  other.CheckWorks();
  CHECK(other.a.Swap(1).ok());  // and b does not
  other.a.Synchronize();
  status = other.a.Swap(1);
  CHECK(status.code == Code::kDeadlineExceeded);
  CHECK_CONTAINS(
      status.message,
      "exchange over axis 'x' (channel 7): device 0 waited 1.0 s for messages of stage 3, from or to device 1");
  CHECK_CONTAINS(status.message, "processes that have stopped");

  Pair late(kShortMs);
  late.CheckWorks();
  Fake().polls = 1'000'000;  // what it begins does not get on its streams
  status = late.a.Swap(1);
  Fake().polls = -1;
  CHECK(status.code == Code::kDeadlineExceeded);
  CHECK_CONTAINS(status.message, ": NCCL could not move messages in time: other processes did not come to it.");
}

// What a device computes before is no part of the wait for messages.
TEST(LongComputation) {
  Pair pair(kShortMs);
  pair.CheckWorks();
  pair.a.Compute();
  pair.b.Compute();
  CHECK(pair.a.Swap(1).ok());
  CHECK(pair.b.Swap(0).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(2 * kShortMs));
  pair.a.LetGo();
  pair.b.LetGo();
  pair.a.Synchronize();
  pair.b.Synchronize();
  CHECK(pair.a.Got(1));
  CHECK(pair.b.Got(0));
  pair.CheckWorks();
}

// Many exchanges ahead of the devices: the host waits for these when there are too many, until they are given up.
TEST(FarAhead) {
  Pair pair(kShortMs);
  pair.CheckWorks();
  pair.a.Compute();  // so that no message is waited for yet, however long it takes to get there
  for (int i = 0; i < 128; ++i) CHECK_EQ(pair.a.Swap(1).message, "");  // and b stays away
  pair.a.LetGo();
  CHECK(pair.a.Swap(1).code == Code::kDeadlineExceeded);
}

// The call site goes while its exchange is in flight: its communicators are closed when that has happened, or given
// up.
TEST(Closing) {
  for (const bool happens : {true, false}) {
    {
      Pair pair(happens ? kNoTimeoutMs : kShortMs);
      pair.CheckWorks();
      const int aborted = Fake().aborted;
      pair.a.Compute();
      CHECK(pair.a.Swap(1).ok());
      pair.a.Close();
      if (happens) CHECK(pair.b.Swap(0).ok());
      pair.b.Close();
      CHECK_GE(Fake().live.load(), 1);
      pair.a.LetGo();
      pair.a.Synchronize();
      pair.b.Synchronize();
      CHECK_EQ(pair.a.Got(1), happens);
      CHECK(AreLive(0));
      CHECK_EQ(Fake().aborted - aborted, happens ? 0 : 1);
    }
    CHECK(AreLive(0));
  }
}

TEST(Layouts) {
  const auto site = MakeSite(1, 2);
  {
    Process alone(site, 0, nullptr);
    CHECK_CONTAINS(alone.Swap(1).message,
                   "devices of other processes take part, and there is nothing to find these by");
  }
  const NcclSetting setting;
  const Caller callers[] = {{reinterpret_cast<kernels::Stream>(1), 3, nullptr},
                            {reinterpret_cast<kernels::Stream>(2), 3, nullptr}};
  const Layout layout{{0, 1}, {0, 1}, {&callers[0], &callers[1]}};
  Channel channel(*site, 0);
  const Status status = setting.fabric->Connect(*site, 0, layout, &channel);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_CONTAINS(status.message,
                 "device 0 and device 1 are both emulated device 3; messages go between different ones");
}

TEST(NothingIsLeft) {
  CHECK(AreLive(0));
  CHECK_EQ(Fake().mistakes.load(), 0);
}

}  // namespace
}  // namespace fastjax::test
