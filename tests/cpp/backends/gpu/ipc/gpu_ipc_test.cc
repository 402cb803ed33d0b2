// Exchanges between GPUs of several processes that share memory: the rows are right, whoever is where, and they go by
// messages where anybody refuses.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ipc_rig.h"
#include "kernels/emulated_gpu.h"
#include "runtime/statistics.h"
#include "support/check.h"
#include "support/exchange_rig.h"
#include "support/gpu/nccl_rig.h"
#include "support/network_rig.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using kernels::emulatedSharing;

// The watchdog holds the call sites that it looks at. If it is the last to, what one has opened is closed a little
// later.
bool NothingIsOpen() {
  return Eventually([] { return emulatedSharing().opened == 0; });
}

// Rows go by shared memory, where all processes are on one host, and by both ways where they are not.
void TestExchanges(uint64_t seed, int32_t hosts) {
  std::mt19937_64 random(seed);
  int64_t shared = 0;
  for (int trial = 0; trial < 24; ++trial) {
    CHECK(NothingIsOpen());
    emulatedSharing().aliases = trial % 2 == 0;
    RigOptions options = DrawOptions(&random);
    options.scheduler = AllSchedulers()[static_cast<size_t>(trial) % AllSchedulers().size()];
    const int32_t groups = options.topology.devices() <= 8 ? static_cast<int32_t>(1 + random() % 2) : 1;
    const auto site = MakeSite(groups, options.topology.devices(), kNoTimeoutMs, &random);
    const int32_t count =
        Deal(static_cast<Owners>(random() % 4), options.topology.devices_per_server, &random, site.get());
    const Context context(Name(options) + ", " + std::to_string(count) + " processes");
    const int made = Fake().made;
    IpcJob job(site, options, count, random(),
               [&](int32_t process) { return ProcessSetup{1 + static_cast<uint64_t>(process % hosts)}; });
    int64_t launch = 0;
    for (const Case& test_case : SomeCases(options.topology, random())) {
      const Context inner(test_case.name);
      Rig rig(site, options, test_case.traffic, &random);
      rig.CheckRun(job.exchange.get(), launch++ / 2, true);
    }
    shared += emulatedSharing().opened > 0 ? 1 : 0;
    if (hosts == 1) CHECK_EQ(Fake().made.load(), made);
  }
  CHECK_GE(shared, 24 / kCaseStep);
  CHECK(NothingIsOpen());
}

std::atomic<int64_t> opened_moves{0};

// What another process's memory is opened by is the device that writes to it.
void LookAt(const kernels::Move* moves, int64_t count, int device) {
  for (int64_t i = 0; i < count; ++i) {
    const int by = kernels::emulatedOpenedBy(moves[i].dst);
    if (by >= 0) CHECK_EQ(by, device);
    opened_moves += by >= 0 ? 1 : 0;
  }
}

// Looks at each list: those in device memory when the stream comes to them, since they are not there before.
const kernels::Driver* LookingDriver() {
  struct List {
    const kernels::Move* moves;
    int64_t count;
    int device;
  };
  static const kernels::Driver driver = [] {
    kernels::Driver looking = *fastjax_gpu_driver();
    looking.MoveRows = [](const kernels::Move* moves, int64_t count, int64_t end, const uint64_t* gate, int32_t blocks,
                          kernels::Stream stream) {
      auto* const list = new List{moves, count, -1};
      fastjax_gpu_driver()->GetDevice(&list->device);
      const auto look = [](void* data) {
        const std::unique_ptr<List> own(static_cast<List*>(data));
        LookAt(own->moves, own->count, own->device);
      };
      fastjax_gpu_driver()->CallHost(stream, look, list);
      return fastjax_gpu_driver()->MoveRows(moves, count, end, gate, blocks, stream);
    };
    looking.MoveFew = [](const kernels::Move* moves, int64_t count, int64_t end, const uint64_t* gate, int32_t blocks,
                         kernels::Stream stream) {
      int device = -1;
      fastjax_gpu_driver()->GetDevice(&device);
      LookAt(moves, count, device);
      return fastjax_gpu_driver()->MoveFew(moves, count, end, gate, blocks, stream);
    };
    return looking;
  }();
  return &driver;
}

// Two devices of a process find the same memory of another at different addresses.
void TestAddresses() {
  emulatedSharing().aliases = true;
  std::mt19937_64 random(38);
  for (const planner::Scheduler scheduler : AllSchedulers()) {
    RigOptions options;
    options.topology = MakeTopology(2, 2);
    options.scheduler = scheduler;
    const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
    Deal(Owners::kServers, 2, &random, site.get());
    IpcJob job(site, options, 2, random(), [](int32_t) { return ProcessSetup{1, true, LookingDriver()}; });
    Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
    opened_moves = 0;
    rig.CheckRun(job.exchange.get(), 1, true);
    CHECK_GT(opened_moves.load(), 0);
  }
}

// Two processes of two devices, and four of one: the layouts that hosts have.
void TestLayouts() {
  std::mt19937_64 random(32);
  for (const bool aliases : {false, true}) {
    emulatedSharing().aliases = aliases;
    for (const int32_t processes : {2, 4}) {
      for (const planner::Scheduler scheduler : AllSchedulers()) {
        for (const bool two_hosts : {false, true}) {
          CHECK(NothingIsOpen());
          RigOptions options;
          options.topology = MakeTopology(2, 2);
          options.scheduler = scheduler;
          const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
          Deal(processes == 2 ? Owners::kServers : Owners::kHalves, 2, &random, site.get());
          const Context context(Name(options) + ", " + std::to_string(processes) + " processes");
          // With two processes, two hosts mean that nobody has a neighbour.
          IpcJob job(site, options, processes, random(),
                     [&](int32_t p) { return ProcessSetup{two_hosts && 2 * p >= processes ? 2U : 1U}; });
          Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
          for (int run = 0; run < 3; ++run) {
            rig.Reset();
            rig.CheckRun(job.exchange.get(), run, true);
          }
          CHECK_EQ(emulatedSharing().opened > 0, processes == 4 || !two_hosts);
        }
      }
    }
  }
}

// Rows that indices name are written into shared memory. On the way back they are messages, with their factors.
void TestIndexed() {
  CHECK(NothingIsOpen());
  emulatedSharing().aliases = true;
  std::mt19937_64 random(39);
  RigOptions options = IndexedSums().back();
  options.on_device = true;
  for (const bool reverse : {false, true}) {
    CHECK(NothingIsOpen());
    options.exchange.reverse = reverse;
    options.factors = reverse;
    const auto site = MakeSite(1, options.topology.devices(), kNoTimeoutMs, &random);
    Deal(Owners::kServers, options.topology.devices_per_server, &random, site.get());
    const Context context(Name(options));
    IpcJob job(site, options, 2, random());
    Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
    rig.CheckRun(job.exchange.get(), 1, true);
    CHECK_EQ(emulatedSharing().opened > 0, !reverse);
  }
}

// Exchanges of two call sites and two groups in turns, many times, each process at its own pace.
void TestMany() {
  CHECK(NothingIsOpen());
  emulatedSharing().aliases = false;
  std::mt19937_64 random(33);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  const auto site = MakeSite(2, 4, kNoTimeoutMs, &random);
  Deal(Owners::kHalves, 2, &random, site.get());
  const auto other_site = std::make_shared<CallSite>(*site);
  other_site->channel = 8;
  IpcJob job(site, options, 4, 3);
  const auto other = job.Open(other_site, options);
  const auto cases = MakeCases(options.topology, random());
  Rig rig(site, options, cases.back().traffic, &random);
  Rig other_rig(other_site, options, cases[cases.size() / 2].traffic, &random);
  const int opened = [&] {
    CHECK(rig.Run(job.exchange.get(), 0, true).all_ok());
    CHECK(other_rig.Run(other.get(), 0, true).all_ok());
    return emulatedSharing().opened.load();
  }();
  for (int run = 1; run < 100; ++run) {
    const bool first = random() % 3 != 0;
    Rig& one = first ? rig : other_rig;
    one.Reset();
    one.CheckRun(first ? job.exchange.get() : other.get(), run, random() % 2 == 0);
  }
  CHECK_EQ(emulatedSharing().opened.load(), opened);  // what was opened once is found
}

// An allocator gives memory back and takes other: what others have of it is opened anew, and the old closed.
void TestStaleMemory() {
  for (const bool aliases : {false, true}) {
    CHECK(NothingIsOpen());
    emulatedSharing().aliases = aliases;
    Ring ring(3, kNoTimeoutMs, 34);
    ring.CheckWorks();
    const int opened = emulatedSharing().opened;
    CHECK_EQ(opened, 6);
    for (int run = 0; run < 20; ++run) {
      for (int32_t p = 0; p < 3; ++p) {
        if (ring.random() % 2 == 0) ring.job->exchange->RenewMemory(p);
      }
      ring.CheckWorks();
    }
    CHECK_GE(emulatedSharing().opened.load(), opened);
    CHECK_LE(emulatedSharing().opened.load(), 21 * opened);
  }
}

// ---- refusals

int Refuse() { return kernels::emulatedErrorInvalidValue; }

using Change = std::function<void(kernels::Driver*)>;

std::vector<std::pair<std::string, Change>> Refusals() {
  return {
      {"find the allocation",
       [](auto* driver) { driver->FindAllocation = [](kernels::Allocation*, const void*) { return Refuse(); }; }},
      {"share an allocation",
       [](auto* driver) { driver->ExportMemory = [](kernels::MemoryHandle*, void*) { return Refuse(); }; }},
      {"open memory of another process",
       [](auto* driver) { driver->OpenMemory = [](void**, const kernels::MemoryHandle*) { return Refuse(); }; }},
      {"register shared memory", [](auto* driver) { driver->RegisterHost = [](void*, size_t) { return Refuse(); }; }},
      {"find shared memory", [](auto* driver) { driver->FindRegistered = [](void**, void*) { return Refuse(); }; }},
      {"no access between its own", [](auto* driver) { *driver = WithoutPeers(*driver); }},
  };
}

// What stats say of it, of all processes.
std::vector<std::string> SaidByStats() {
  std::vector<std::string> said;
  for (const SiteReport& report : Records::Get().Report()) {
    if (report.active) said.push_back(report.statistics.memory_refusal);
  }
  return said;
}

constexpr const char* kNoAccess = "devices of one process do not reach each other's memory";

std::atomic<int> asked{0};

// Whatever any one process refuses: all fall back to messages, before anything is launched, and do not ask again.
void TestRefusals() {
  emulatedSharing().aliases = false;
  std::mt19937_64 random(35);
  for (const auto& [name, change] : Refusals()) {
    for (int32_t who = 0; who < 2; ++who) {
      const Context context(name + ", process " + std::to_string(who));
      static std::vector<std::unique_ptr<kernels::Driver>> lasting;
      lasting.push_back(std::make_unique<kernels::Driver>(*fastjax_gpu_driver()));
      kernels::Driver* const refusing = lasting.back().get();
      change(refusing);
      static kernels::Driver counting = *fastjax_gpu_driver();
      counting.FindAllocation = [](kernels::Allocation* allocation, const void* address) {
        ++asked;
        return fastjax_gpu_driver()->FindAllocation(allocation, address);
      };
      RigOptions options;
      options.topology = MakeTopology(2, 2);
      const auto site = MakeSite(1, 4, kNoTimeoutMs, &random);
      Deal(Owners::kServers, 2, &random, site.get());
      IpcJob job(site, options, 2, random(),
                 [&](int32_t process) { return ProcessSetup{1, true, process == who ? refusing : &counting}; });
      Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
      asked = 0;
      Records::Get().Reset();
      Records::Collect(true);
      const int made = Fake().made;
      for (int run = 0; run < 3; ++run) {
        rig.Reset();
        rig.CheckRun(job.exchange.get(), run, true);
        if (run == 0) CHECK_GT(asked.load(), 0);
        if (run > 0) CHECK_EQ(asked.load(), 0);
        asked = 0;
      }
      Records::Collect(false);
      CHECK_EQ(SaidByStats().size(), 2U);
      const std::vector<std::string> said = SaidByStats();
      const auto own = static_cast<size_t>(who);
      CHECK(Contains(said[own], "could not " + name) || said[own] == kNoAccess);
      CHECK(Contains(said[1 - own], "process " + std::to_string(who) + " cannot ") ||
            Contains(said[1 - own], "could not open another process's shared memory: "));
      CHECK_EQ(Fake().made.load(), made + 4);
      CHECK_EQ(BoardFiles(), 0);
    }
  }
  CHECK(NothingIsOpen());
}

// It is off in one process: nobody asks.
void TestOffInOne() {
  static kernels::Driver counting = *fastjax_gpu_driver();
  counting.FindAllocation = [](kernels::Allocation* allocation, const void* address) {
    ++asked;
    return fastjax_gpu_driver()->FindAllocation(allocation, address);
  };
  asked = 0;
  Ring ring(3, kNoTimeoutMs, 36, [](int32_t process) { return ProcessSetup{1, process != 1, &counting}; });
  Records::Get().Reset();
  Records::Collect(true);
  ring.CheckWorks();
  ring.CheckWorks();
  Records::Collect(false);
  CHECK_EQ(asked.load(), 0);
  const std::string off = "another process does not share memory";
  CHECK(SaidByStats() == std::vector<std::string>({off, "", off}));
}

}  // namespace
}  // namespace fastjax::test

int main() {
  using namespace fastjax::test;
  fastjax_gpu_driver()->SetDevice(0);
  TestExchanges(31, 1);
  TestExchanges(37, 2);
  TestAddresses();
  TestLayouts();
  TestIndexed();
  TestMany();
  TestStaleMemory();
  TestRefusals();
  TestOffInOne();
  CHECK_EQ(BoardFiles(), 0);
  CheckNoMisuse();
  return Finish("gpu_ipc_test");
}
