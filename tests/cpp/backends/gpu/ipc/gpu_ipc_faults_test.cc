// What goes wrong between processes that share memory: every wait ends, nobody's memory is touched after that, the next
// exchange is told, and then all is well.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/gpu/ipc/memory_group.h"
#include "backends/gpu/ipc/memory_message.h"
#include "ipc_rig.h"
#include "kernels/emulated_gpu.h"
#include "planner/table.h"
#include "support/check.h"
#include "support/gpu/nccl_rig.h"
#include "support/network_rig.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/table_words.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

using gpu::ipc::kLastStep;
using gpu::ipc::kSteps;
using kernels::emulatedSharing;

constexpr int64_t kShortMs = 1000;  // long enough for all that must not be late
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool AnyContains(const std::vector<std::string>& said, const std::string& part) {
  for (const std::string& text : said) {
    if (Contains(text, part)) return true;
  }
  for (const std::string& text : said) std::fprintf(stderr, "'%s' is not in '%s'\n", part.c_str(), text.c_str());
  return false;
}

// Starts all devices, and waits for none.
Outcomes Start(Ring* ring) {
  ring->rig->Reset();
  const Outcomes outcomes(ring->site->partitions());
  ++ring->run_id;
  for (int32_t p = 0; p < outcomes.count(); ++p) {
    ring->rig->Start(ring->job->exchange.get(), ring->run_id, p, outcomes.For(p));
  }
  return outcomes;
}

// One device comes too late: the other goes on, and the late one, when it comes, touches nothing of it.
void TestLate() {
  for (const bool aliases : {false, true}) {
    emulatedSharing().aliases = aliases;
    Ring ring(2, kShortMs, 1);
    ring.CheckWorks();
    const auto computation = std::make_shared<Computation>();
    ring.job->exchange->Compute(1, computation);
    const auto begin = Clock::now();
    const Outcomes outcomes = Start(&ring);
    outcomes.Wait(0);
    CHECK_GE(SecondsSince(begin), 0.9);
    CHECK(outcomes.status(0).ok());  // for the host
    CHECK(!outcomes.called(1));
    const auto memory = ring.job->exchange->memory(0).Content();
    computation->LetGo();
    outcomes.Wait(1);
    CHECK(memory == ring.job->exchange->memory(0).Content());
    const std::vector<std::string> said = ring.RunUntilItWorks(4);
    CHECK(!said.empty());
    CHECK_CONTAINS(said[0],
                   "exchange over axis 'x' (channel 7): device 0 waited 1.0 s for device 1 to begin the exchange. Rows "
                   "of that exchange are undefined;");
    CHECK_CONTAINS(said[0], "raise the limit with fastjax.options(timeout=...)");
    CHECK(Contains(said[1], "gave up: exchange") || Contains(said[1], "the process of device 0 gave up an exchange."));
    ring.CheckWorks();
  }
}

// ---- devices that stop on their way

std::atomic<uint64_t> stop_at{0};  // before this step of an exchange; 0: nowhere

std::shared_ptr<Computation>& Stop() {
  static auto* const stop = new std::shared_ptr<Computation>;
  return *stop;
}

const kernels::Driver* StoppingDriver() {
  static const kernels::Driver driver = [] {
    kernels::Driver stopping = *fastjax_gpu_driver();
    stopping.PassBarrier = [](const kernels::Barrier* barrier, kernels::Stream stream) {
      if (barrier->step % kSteps == stop_at) {
        const auto run = [](void* data) { static_cast<Computation*>(data)->Run(); };
        fastjax_gpu_driver()->CallHost(stream, run, Stop().get());
      }
      return fastjax_gpu_driver()->PassBarrier(barrier, stream);
    };
    return stopping;
  }();
  return &driver;
}

// It may be writing to others' memory, as far as these know: they wait once more as long before they go on.
void TestStopped(uint64_t step, const std::string& what) {
  emulatedSharing().aliases = false;
  Ring ring(3, kShortMs, 2,
            [](int32_t p) { return ProcessSetup{1, true, p == 1 ? StoppingDriver() : fastjax_gpu_driver()}; });
  ring.options.scheduler = planner::Scheduler::kFast;
  ring.job->exchange = ring.job->Open(ring.site, ring.options);
  ring.rig = std::make_unique<Rig>(ring.site, ring.options,
                                   MakeCases(ring.options.topology, ring.random()).back().traffic, &ring.random);
  ring.CheckWorks();
  Stop() = std::make_shared<Computation>();
  stop_at = step;
  const auto begin = Clock::now();
  const Outcomes outcomes = Start(&ring);
  outcomes.Wait(0);
  outcomes.Wait(2);
  CHECK_GE(SecondsSince(begin), 1.8);
  CHECK(!outcomes.called(1));
  stop_at = 0;
  Stop()->LetGo();
  outcomes.WaitAll();
  CHECK(ring.rig->GuardsAreWhole());
  const std::vector<std::string> said = ring.RunUntilItWorks(6);
  CHECK(AnyContains(said, " waited 1.0 s for device 1 " + what));
  ring.CheckWorks();
}

// What devices compute before they come is no part of a wait.
void TestLongComputation() {
  Ring ring(2, kShortMs, 3);
  ring.CheckWorks();
  std::vector<std::shared_ptr<Computation>> computations;
  for (int32_t p = 0; p < 2; ++p) {
    computations.push_back(std::make_shared<Computation>());
    ring.job->exchange->Compute(p, computations.back());
  }
  const Outcomes outcomes = Start(&ring);
  std::this_thread::sleep_for(std::chrono::milliseconds(2 * kShortMs));
  for (const auto& computation : computations) computation->LetGo();
  outcomes.WaitAll();
  CHECK(outcomes.all_ok());
  CHECK(ring.rig->IsRight());
  ring.CheckWorks();
}

// A process that stays away from the call is named, and shares memory again when it comes.
void TestAbsent() {
  Ring ring(2, kShortMs, 4);
  ring.CheckWorks();
  const Outcomes outcomes(2);
  ring.rig->Reset();
  ring.rig->Start(ring.job->exchange.get(), ++ring.run_id, 0, outcomes.For(0));
  outcomes.Wait(0);
  CHECK_CONTAINS(outcomes.status(0).message, "process 1");
  CHECK_CONTAINS(outcomes.status(0).message, "which did not reach this call");
  ring.rig->Start(ring.job->exchange.get(), ring.run_id, 1, outcomes.For(1));
  outcomes.Wait(1);
  CHECK(!outcomes.status(1).ok());
  const int made = Fake().made;
  ring.CheckWorks();
  CHECK_EQ(Fake().made.load(), made);
}

// Whatever call of the driver fails, in whichever process: nobody waits for it, although the limit is an hour, and the
// next exchange works.
void TestDriverFaults() {
  static const FaultyDriver faulty;  // what is closed in the background uses it to the end
  emulatedSharing().aliases = false;
  for (const bool first : {true, false}) {
    int64_t failed = 0;
    bool fails = true;
    for (int64_t calls = 0; fails; ++calls) {
      const Context context("call " + std::to_string(calls) + " fails");
      Ring ring(2, kNoTimeoutMs, 5, [](int32_t) { return ProcessSetup{1, true, faulty.get()}; });
      if (!first) ring.CheckWorks();
      FaultyDriver::FailAfter(calls);
      const Outcomes outcomes = ring.Run();
      fails = FaultyDriver::Stop();
      const bool whole = outcomes.all_ok();
      failed += whole ? 0 : 1;
      // What another process gives up while this one's rows move is told to its next exchange.
      const std::vector<std::string> said = ring.RunUntilItWorks(4);
      CHECK(!whole || ring.rig->GuardsAreWhole());
      if (!fails) {
        CHECK(whole);
        CHECK(said.empty());
      }
      ring.CheckWorks();
    }
    CHECK_GT(failed, 10);
  }
}

// A plan that one process damaged: it would write beyond the staging of another, and finds that out before.
void TestWrongTable() {
  emulatedSharing().aliases = false;
  std::mt19937_64 random(7);
  RigOptions options;
  options.topology = MakeTopology(2, 2);
  options.scheduler = planner::Scheduler::kFast;
  const auto site = MakeSite(1, 4, kNoTimeoutMs);
  Deal(Owners::kHalves, 2, &random, site.get());
  IpcJob job(site, options, 4, 7);
  Rig rig(site, options, MakeCases(options.topology, random()).back().traffic, &random);
  int64_t run_id = 0;
  CHECK(rig.Run(job.exchange.get(), ++run_id, true).all_ok());
  int64_t damaged = 0;
  for (int32_t p = 0; p < 4; ++p) {
    std::vector<int32_t>& table = rig.table(p);
    const std::vector<int32_t> good = table;
    const planner::TableView view(good.data());
    for (int32_t i = 0; i < view.entries(); ++i) {
      const planner::Transfer sent = view.entry(i);
      if (sent.src != p || sent.dst == p || sent.dst_row < 0) continue;  // partitions are ranks here
      const int64_t room = planner::TableView(rig.table(sent.dst).data()).staging_rows();
      table[static_cast<size_t>(planner::kHeaderWords + 8 + planner::kEntryWords * i + 9)] =
          static_cast<int32_t>(room - sent.rows + 1);
      Reseal(&table);
      ++damaged;
      break;
    }
    if (table == good) continue;
    const Outcomes outcomes = rig.Run(job.exchange.get(), ++run_id, true);
    CHECK_CONTAINS(outcomes.status(p).message, "the plan moves rows that the exchange does not have.");
    CHECK(rig.GuardsAreWhole());
    table = good;
    bool works = false;
    for (int attempt = 0; attempt < 4 && !works; ++attempt) {
      rig.Reset();
      works = rig.Run(job.exchange.get(), ++run_id, true).all_ok();
    }
    CHECK(works);
    CHECK(rig.IsRight());
  }
  CHECK_GE(damaged, 2);
}

// The call site goes while its exchange is in flight: what streams use stays until they are through.
void TestClosing() {
  emulatedSharing().aliases = false;
  {
    Ring ring(2, kShortMs, 6);
    ring.CheckWorks();
    const auto computation = std::make_shared<Computation>();
    ring.job->exchange->Compute(1, computation);
    const Outcomes outcomes = Start(&ring);
    outcomes.Wait(0);
    computation->LetGo();
    outcomes.Wait(1);
  }
  CHECK(Eventually([] { return emulatedSharing().opened == 0; }));
  CHECK_EQ(BoardFiles(), 0);
}

// Malformed messages are refused, whatever they contain.
void TestMalformedMessages() {
  using gpu::ipc::Decode;
  using gpu::ipc::Encode;
  using gpu::ipc::MemoryMessage;
  MemoryMessage message;
  message.host = 5;
  message.devices.resize(2);
  message.devices[1].places[gpu::kStaging] = {0, 77};
  message.devices[1].staging_rows = 9;
  message.shared_allocations.resize(1);
  message.shared_allocations[0].bytes = 1000;
  const std::vector<int64_t> words = Encode(message);
  MemoryMessage read;
  CHECK(Decode(words, 2, &read));
  CHECK(Encode(read) == words);
  CHECK(!Decode(words, 1, &read));
  CHECK(!Decode(words, 3, &read));
  for (size_t length = 0; length < words.size(); ++length) {
    CHECK(!Decode({words.begin(), words.begin() + static_cast<std::ptrdiff_t>(length)}, 2, &read));
  }
  const auto refused = [&](size_t at, int64_t value) {
    std::vector<int64_t> changed = words;
    changed[at] = value;
    CHECK(!Decode(changed, 2, &read));
  };
  refused(5, 2);                   // more shared allocations than there are
  refused(5, -1);                  // fewer than none
  refused(6, 1);                   // a place in the second of one
  refused(6, -2);                  // a place in none
  refused(words.size() - 12, -1);  // staging
}

}  // namespace
}  // namespace fastjax::test

int main() {
  using namespace fastjax::test;
  fastjax_gpu_driver()->SetDevice(0);
  TestLate();
  TestStopped(2, "to finish stage 1.");
  TestStopped(kLastStep, "to finish stage ");
  TestLongComputation();
  TestAbsent();
  TestDriverFaults();
  TestWrongTable();
  TestClosing();
  TestMalformedMessages();
  CheckNoMisuse();
  return Finish("gpu_ipc_faults_test");
}
