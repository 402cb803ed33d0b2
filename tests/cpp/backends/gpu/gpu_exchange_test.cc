// Exchanges between devices of the emulated GPU: failures, calls of the driver, lists and streams. What they do with
// rows is in tests/exchange_checks, and between processes in gpu_network_test.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "planner/table.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/gpu/gpu_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/table_words.h"
#include "support/threads.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using gpu::Gpu;
using gpu::nccl::Fabric;
using planner::Scheduler;

// Of the driver, for a copy of its lists, a kernel, and coming and going with others.
constexpr int64_t kCallsOfDevice = 20;

enum class Where { kPeers, kLoopback };

struct Setting {
  std::shared_ptr<Gpu> gpu;
  std::unique_ptr<StreamedExchange> exchange;
};

Setting Open(const std::shared_ptr<CallSite>& site, const RigOptions& options, Where where,
             const kernels::Driver* driver = fastjax_gpu_driver(), std::shared_ptr<Gpu> gpu = nullptr) {
  Setting setting;
  setting.gpu = gpu == nullptr ? std::make_shared<Gpu>(driver) : std::move(gpu);
  gpu::Gpus gpus = {setting.gpu, nullptr, options.topology.devices_per_server};
  if (where == Where::kPeers) gpus = {setting.gpu, std::make_shared<Fabric>(setting.gpu, std::vector<std::string>())};
  setting.exchange =
      std::make_unique<StreamedExchange>(setting.gpu, gpu::OpenDeviceExchange(gpus, site, options.exchange),
                                         site->partitions(), where == Where::kLoopback);
  return setting;
}

std::string Name(Where where) { return where == Where::kPeers ? ", peers" : ", loopback"; }

// Whatever call of the driver fails: an error with its text on every device, nothing written out of bounds, and the
// next exchange works.
TEST(Faults) {
  std::mt19937_64 random(3);
  const FaultyDriver driver;
  int64_t failed = 0;
  for (const Where where : {Where::kPeers, Where::kLoopback}) {
    for (int32_t kind = 0; kind < 4; ++kind) {
      RigOptions options;
      options.topology = MakeTopology(2, 2);
      options.exchange.reverse = kind % 2 != 0;
      options.exchange.indexed = options.on_device = kind >= 2;
      options.overlap = kind == 1;
      const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
      const Case test_case = MakeCases(options.topology, random()).back();
      bool fails = true;
      for (int64_t calls = 0; fails; ++calls) {
        const Context context(Name(options) + Name(where) + ", call " + std::to_string(calls) + " fails");
        const Setting setting = Open(site, options, where, driver.get());
        Rig rig(site, options, test_case.traffic, &random);
        FaultyDriver::FailAfter(calls);
        const Outcomes outcomes = rig.Run(setting.exchange.get(), 1, false);
        fails = FaultyDriver::Stop();
        // What fails on the way out, when the thread's device is chosen again, harms nobody.
        const bool whole = outcomes.all_ok();
        CHECK(fails || whole);
        failed += whole ? 0 : 1;
        for (int32_t i = 0; i < outcomes.count() && !whole; ++i) {
          const std::string message = outcomes.status(i).message;
          CHECK_CONTAINS(message, "emulated device ");
          CHECK_CONTAINS(message, ": out of memory (2).");
        }
        CHECK(rig.GuardsAreWhole());
        CHECK(!whole || rig.IsRight());
        rig.Reset();
        rig.CheckRun(setting.exchange.get(), 2, false);
      }
    }
  }
  CHECK_GT(failed, 100);
}

// Of the driver, in an exchange of one server's devices with one row for each.
int64_t CallsAmong(int32_t devices, std::mt19937_64* random) {
  const FaultyDriver driver;
  RigOptions options;
  options.topology = MakeTopology(1, devices);
  options.scheduler = Scheduler::kDirect;
  const auto site = MakeSite(1, devices, kNoTimeoutMs, random);
  const Setting setting = Open(site, options, Where::kPeers, driver.get());
  const std::vector<int64_t> traffic(static_cast<size_t>(devices) * devices, 1);
  Rig rig(site, options, traffic, random);
  for (int64_t run = 1; run < 3; ++run) {
    rig.Reset();
    FaultyDriver::Count();
    rig.CheckRun(setting.exchange.get(), run, false);
  }
  return FaultyDriver::Counted();
}

// What the host does for one more device is the same, however many there are.
TEST(Calls) {
  std::mt19937_64 random(8);
  const int64_t two = CallsAmong(2, &random);
  const int64_t four = CallsAmong(4, &random);
  CHECK_GT(two, 0);
  CHECK_EQ(CallsAmong(8, &random) - four, 2 * (four - two));
  CHECK_LE(four - two, 2 * kCallsOfDevice);
}

// A device without memory for staging, messages or lists says so.
TEST(NoMemory) {
  std::mt19937_64 random(4);
  bool seen[3] = {};
  constexpr const char* kTexts[] = {"bytes of staging; use scheduler=\"direct\"", "bytes of messages on a device",
                                    "bytes of lists; leave more to it"};
  RigOptions options;
  options.topology = MakeTopology(2, 4);
  options.per_peer = 6;  // lists that launches do not take along
  const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
  for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kDirect}) {
    options.scheduler = scheduler;
    for (const Case& test_case : MakeCases(options.topology, random())) {
      for (const int64_t limit : {0, 600, 3000, 9000, 30000}) {
        const Setting setting = Open(site, options, Where::kLoopback);
        setting.exchange->LimitMemory(limit);
        Rig rig(site, options, test_case.traffic, &random);
        const Outcomes outcomes = rig.Run(setting.exchange.get(), 1, false);
        if (outcomes.all_ok()) continue;
        for (size_t i = 0; i < 3; ++i) {
          if (Contains(outcomes.status(0).message, kTexts[i])) seen[i] = true;
        }
        CHECK(rig.IsUntouched());
      }
    }
  }
  for (const bool text : seen) CHECK(text);
}

// What is thrown half-way is an error like others: nothing is left on streams or locked, and the next exchange works.
TEST(Thrown) {
  std::mt19937_64 random(7);
  RigOptions options;
  options.topology = MakeTopology(2, 4);
  options.per_peer = 6;
  const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
  const Case test_case = MakeCases(options.topology, random()).back();
  for (const Where where : {Where::kPeers, Where::kLoopback}) {
    int64_t thrown = 0;
    for (bool whole = false; !whole; ++thrown) {
      const Context context(Name(options) + Name(where) + ", allocation " + std::to_string(thrown) + " throws");
      const Setting setting = Open(site, options, where);
      Rig rig(site, options, test_case.traffic, &random);
      setting.exchange->ThrowAt(thrown);
      const Outcomes outcomes = rig.Run(setting.exchange.get(), 1, false);
      whole = outcomes.all_ok();
      CHECK(whole || outcomes.status(0).message.find("bad_alloc") != std::string::npos);
      CHECK(rig.GuardsAreWhole());
      setting.exchange->ThrowAt(-1);
      rig.Reset();
      rig.CheckRun(setting.exchange.get(), 2, false);
    }
    // Staging, and, where one call has the moves of all ranks, lists, besides the time when nothing was.
    CHECK_GT(thrown, where == Where::kPeers ? 1 : 2);
  }
}

// Launches take short lists along: then nothing is copied to the device, and no pinned memory is taken. Where a list is
// longer, or there are sums, one copy a device brings all lists.
TEST(Lists) {
  static std::atomic<int64_t> copied, pinned, few;
  static kernels::Driver driver = *fastjax_gpu_driver();
  driver.Copy = [](void* dst, const void* src, size_t bytes, kernels::Stream stream) {
    ++copied;
    return fastjax_gpu_driver()->Copy(dst, src, bytes, stream);
  };
  driver.MallocPinned = [](void** memory, size_t bytes) {
    ++pinned;
    return fastjax_gpu_driver()->MallocPinned(memory, bytes);
  };
  driver.MoveFew = [](const kernels::Move* moves, int64_t count, int64_t end, int32_t blocks, kernels::Stream stream) {
    ++few;
    return fastjax_gpu_driver()->MoveFew(moves, count, end, blocks, stream);
  };
  std::mt19937_64 random(8);
  RigOptions options;
  options.topology = MakeTopology(1, 16);
  options.row_bytes = 8;
  const auto site = MakeSite(1, 16, kNoTimeoutMs, &random);
  bool summed = false;
  for (const bool reverse : {false, true}) {
    for (const bool many : {false, true}) {
      options.per_peer = many ? 20 : 1;
      options.exchange.reverse = options.overlap = reverse;
      const Context context(Name(options));
      const Setting setting = Open(site, options, Where::kPeers, &driver);
      Rig rig(site, options, Fill(options.topology, [](int32_t, int32_t) { return 8000; }), &random);
      copied = pinned = few = 0;
      rig.CheckRun(setting.exchange.get(), 1, false);
      const int64_t copies = many || rig.sums() ? 16 : 0;
      CHECK_EQ(copied.load(), copies);
      CHECK_EQ(pinned.load(), copies);
      CHECK_EQ(few > 0, copies == 0);
      summed = summed || rig.sums();
    }
  }
  CHECK(summed);
}

// Ends of a message that disagree, by tables that are sound by themselves, are refused.
TEST(OneEnd) {
  std::mt19937_64 random(9);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
  const Setting setting = Open(site, options, Where::kLoopback);
  Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  int64_t refused = 0;
  for (int32_t partition = 0; partition < 4; ++partition) {
    std::vector<int32_t>& table = rig.table(partition);
    const std::vector<int32_t> good = table;
    const int32_t entries = table[planner::kEntries];
    for (int32_t dropped = 0; dropped < entries; ++dropped) {
      // Without one of its transfers.
      const auto at = table.begin() + planner::kHeaderWords + 8 + dropped * planner::kEntryWords;
      const bool crosses = planner::TableView(good.data()).entry(dropped).phase == planner::Phase::kScaleOut;
      std::copy(at + planner::kEntryWords, table.end(), at);
      --table[planner::kEntries];
      Reseal(&table);
      rig.Reset();
      const Status status = rig.Run(setting.exchange.get(), 1, false).status(0);
      CHECK(!crosses || !status.ok());
      if (Contains(status.message, "disagree on what the first sends to the second. Pass what")) {
        ++refused;
        CHECK(rig.IsUntouched());
      }
      CHECK(rig.GuardsAreWhole());
      table = good;
    }
  }
  CHECK_GT(refused, 4);
  rig.Reset();
  rig.CheckRun(setting.exchange.get(), 2, false);
}

// Ranks of a loopback are those of one stream.
TEST(LoopbackOfSeveralStreams) {
  std::mt19937_64 random(10);
  RigOptions options;
  options.topology = MakeTopology(2, 1);
  const auto site = MakeSite(1, 2, kNoTimeoutMs, &random);
  const auto gpu = std::make_shared<Gpu>(fastjax_gpu_driver());
  StreamedExchange exchange(gpu, gpu::OpenDeviceExchange({gpu, nullptr, 1}, site, options.exchange), 2, false);
  Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  const Outcomes outcomes = rig.Run(&exchange, 1, false);
  CHECK_CONTAINS(outcomes.status(0).message, "ranks that one device executes must be on one stream.");
  CHECK(rig.IsUntouched());
}

// Ranks that one call of a device executes.
class OneCall final : public Exchange {
 public:
  OneCall(std::shared_ptr<Exchange> exchange, const gpu::Caller* caller)
      : exchange_(std::move(exchange)), caller_(caller) {}
  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    args.context = caller_;
    exchange_->Start(run_id, partition, args, std::move(done));
  }
  void FailGroup(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    exchange_->FailGroup(run_id, partition, why, std::move(done));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const gpu::Caller* const caller_;
};

// All are completed by the thread that brings the last of them.
TEST(OneCall) {
  std::mt19937_64 random(13);
  RigOptions options;
  options.topology = MakeTopology(2, 4);
  const auto site = MakeSite(1, 8, kNoTimeoutMs, &random);
  const auto gpu = std::make_shared<Gpu>(fastjax_gpu_driver());
  std::vector<std::unique_ptr<std::byte[]>> memory;
  const OwnStream stream;
  gpu::Caller caller;
  caller.stream = stream.stream;
  caller.allocate = [&](size_t bytes) {
    memory.push_back(std::make_unique<std::byte[]>(bytes));
    return memory.back().get();
  };
  OneCall exchange(gpu::OpenDeviceExchange({gpu, nullptr, 4}, site, options.exchange), &caller);
  Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  const Outcomes outcomes(8);
  for (int32_t p = 0; p < 8; ++p) rig.Start(&exchange, 1, p, outcomes.For(p));
  for (int32_t p = 0; p < 8; ++p) {
    CHECK(outcomes.called(p));
    CHECK_EQ(outcomes.status(p).message, "");
    CHECK(outcomes.thread(p) == std::this_thread::get_id());
  }
  stream.Synchronize();
  CHECK(rig.IsRight());
}

// Launches and bytes of a loopback in which every rank sends one row to each. 8 bytes a row.
TEST(Tally) {
  std::mt19937_64 random(12);
  RigOptions options;
  options.topology = MakeTopology(4, 8);
  const auto site = MakeSite(1, 32, kNoTimeoutMs, &random);
  const Matrix traffic = Fill(options.topology, [](int32_t, int32_t) { return 1; });
  for (const Scheduler scheduler : {Scheduler::kDirect, Scheduler::kFast}) {
    options.scheduler = scheduler;
    const Setting setting = Open(site, options, Where::kLoopback);
    Rig rig(site, options, traffic, &random);
    for (int64_t run = 1; run <= 2; ++run) CHECK(rig.Run(setting.exchange.get(), run, false).all_ok());
    const gpu::Tally tally = setting.gpu->tally();
    CHECK_EQ(tally.exchanges, 2);
    CHECK_EQ(tally.summed, 0);
    // What crosses servers, twice.
    CHECK_EQ(tally.sent, 2 * 8 * 32 * 24);
    if (scheduler == Scheduler::kDirect) {
      CHECK_EQ(tally.messages, 2 * 32 * 24);
      CHECK_EQ(tally.kernels, 2 * 2);  // messages, and copies inside servers
      CHECK_EQ(tally.packed + tally.unpacked, 0);
      CHECK_EQ(tally.copied, 2 * 8 * 32 * 8);
    } else {
      CHECK_EQ(tally.messages, 2 * 96);
      CHECK_LE(tally.kernels, 2 * 4 * 6);  // pipeline steps: three stages, and one before and after
      CHECK_EQ(tally.unpacked, tally.packed);
      CHECK_GT(tally.copied, 2 * 8 * 32 * 8);
    }
  }
}

// Two call sites of one program on streams of their own, launched while the first one's streams compute. Copies of the
// second do not wait for these. Messages do: all of a device are on one stream. Nor do the two share memory, though the
// first one's is given back before its streams come to it.
TEST(TwoStreams) {
  std::mt19937_64 random(14);
  for (const Where where : {Where::kPeers, Where::kLoopback}) {
    for (const bool overlap : {false, true}) {
      RigOptions options;
      options.topology = MakeTopology(2, 2);
      options.exchange.reverse = overlap;
      options.overlap = overlap;
      const Context context(Name(options) + Name(where));
      const auto gpu = std::make_shared<Gpu>(fastjax_gpu_driver());
      const auto earlier_site = MakeSite(1, 4, kNoTimeoutMs, &random);
      const auto later_site = MakeSite(1, 4, kNoTimeoutMs, &random);
      const Setting earlier = Open(earlier_site, options, where, fastjax_gpu_driver(), gpu);
      const Setting later = Open(later_site, options, where, fastjax_gpu_driver(), gpu);
      earlier.exchange->UseCallMemory();
      later.exchange->UseCallMemory();
      Rig earlier_rig(earlier_site, options, MakeCases(options.topology, random()).back().traffic, &random);
      Rig later_rig(later_site, options, MakeCases(options.topology, random()).back().traffic, &random);
      const auto computation = std::make_shared<Computation>();
      for (int32_t p = 0; p < 4; ++p) earlier.exchange->Compute(p, computation);
      const Outcomes earlier_outcomes(4), later_outcomes(4);
      const auto run = [](Rig* rig, Exchange* exchange, const Outcomes& outcomes) {
        RunThreads(4, [&](int32_t p) { rig->Start(exchange, 1, p, outcomes.For(p)); });
      };
      const auto wait_launched = [&](int64_t exchanges) {
        while (gpu->tally().exchanges < exchanges) std::this_thread::yield();
      };
      std::thread first([&] { run(&earlier_rig, earlier.exchange.get(), earlier_outcomes); });
      wait_launched(1);
      std::thread second([&] { run(&later_rig, later.exchange.get(), later_outcomes); });
      wait_launched(2);
      if (where == Where::kPeers) later_outcomes.WaitAll();
      for (int32_t p = 0; p < 4; ++p) CHECK(!earlier_outcomes.called(p));
      computation->LetGo();
      earlier_outcomes.WaitAll();
      later_outcomes.WaitAll();
      first.join();
      second.join();
      CHECK(earlier_outcomes.all_ok() && later_outcomes.all_ok());
      CHECK(earlier_rig.IsRight() && later_rig.IsRight());
    }
  }
}

}  // namespace
}  // namespace fastjax::test
