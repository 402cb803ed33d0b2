// Runners: what they cost when nothing is new to them, tags of groups with more pairs of devices than 16 bits can tell
// apart, and windows. Exchanges of every kind are in network_exchange_test.
#include "backends/network/runner.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "planner/planner.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/group_exchange.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/traffic.h"
#include "support/unlinked_transport.h"

namespace fastjax::test {
namespace {

using network::MessageSchedule;
using network::Runner;
using planner::Scheduler;

// Ends requests in their order, without moving anything, when it is told to. Other threads find it closed, once it is.
class EndingTransport final : public UnlinkedTransport<> {
 public:
  EndingTransport(int32_t process, int32_t processes) : UnlinkedTransport(process, processes) {
    for (auto* tasks : {&tasks_, &running_}) tasks->reserve(1000);
    requests_.reserve(1000);
  }

  bool Post(std::function<void()> task) override {
    const bool own = std::this_thread::get_id() == own_;
    if (!own) closed_.wait();
    if (own) tasks_.push_back(std::move(task));
    return own;
  }
  void Send(const RowMessage& message) override { requests_.push_back(message); }
  void Receive(const RowMessage& message) override { requests_.push_back(message); }
  void Drop(uint64_t tag, uint64_t mask) override { dropped.emplace_back(tag, mask); }

  void EndAll() {
    for (size_t i = 0; i < requests_.size(); ++i) requests_[i].listener->OnDone(requests_[i].cookie, Status::Ok());
    requests_.clear();
    running_.swap(tasks_);
    for (auto& task : running_) task();
    running_.clear();
  }

  std::promise<void> close;
  std::vector<std::pair<uint64_t, uint64_t>> dropped;

 private:
  const std::thread::id own_ = std::this_thread::get_id();
  const std::shared_future<void> closed_ = close.get_future().share();
  std::vector<RowMessage> requests_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::function<void()>> running_;
};

// One group, whose processes have a server each.
struct Job : GroupExchange {
  Job(const planner::Topology& topology, Scheduler scheduler, const Matrix& rows)
      : GroupExchange(topology.devices(), 1) {
    processes = Deal(Owners::kServers, topology.devices_per_server, &random, site.get());
    Plan(topology, scheduler, rows, 1);
    Bring(false, 8);
    for (ExchangeArgs& device : args) {
      device.source = memory.emplace_back(device.source_rows * 8).data();
      device.destination = memory.emplace_back(device.destination_rows * 8).data();
    }
  }
  void Build(int32_t process, MessageSchedule* schedule) {
    Decode(process, false, &plans);
    CHECK_EQ(schedule->Build(*site, 0, process, args, plans, traffic).message, "");
  }

  int32_t processes;
  std::deque<std::vector<std::byte>> memory;
  DevicePlans plans;
};

TEST(NoAllocations) {
  const planner::Topology topology = MakeTopology(3, 2);
  for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kDirect}) {
    Job job(topology, scheduler, Fill(topology, [](int32_t i, int32_t j) { return 5 + (7 * i + 3 * j) % 40; }));
    MessageSchedule schedule;
    job.Build(0, &schedule);
    EndingTransport transport(0, job.processes);
    Runner runner;
    for (const bool warm : {false, true}) {
      const long before = Allocations();
      bool ended = false;
      runner.Start(&transport, job.site.get(), 0, &schedule, uint64_t{1} << 16, 0, [&ended](const Status& status) {
        CHECK(status.ok());
        ended = true;
      });
      while (!ended) transport.EndAll();
      CHECK_EQ(Allocations() == before, warm);
    }
    schedule.Release();
  }
}

// A transport whose thread ends while the pool copies: what comes back from there ends the exchange.
TEST(TransportEnds) {
  const planner::Topology topology = MakeTopology(1, 2);
  Job job(topology, Scheduler::kDirect, Fill(topology, [](int32_t, int32_t) { return 200'000; }));
  MessageSchedule schedule;
  job.Build(0, &schedule);
  EndingTransport transport(0, 1);
  Runner runner;
  const Outcomes outcome(1);
  runner.Start(&transport, job.site.get(), 0, &schedule, uint64_t{1} << 16, 0, outcome.For(0));
  transport.EndAll();
  CHECK(!outcome.called(0));
  transport.close.set_value();
  outcome.WaitAll();
  CHECK_CONTAINS(outcome.status(0).message, "the network of this process has been closed");
  schedule.Release();
}

// Also when some tags need more bits than are theirs, no two pairs of devices share one, and all of them can be
// dropped.
TEST(ManyPairs) {
  const planner::Topology topology = MakeTopology(2, 150);
  const uint64_t tag = uint64_t{0xABCDEF} << 16;
  Job job(topology, Scheduler::kDirect,
          Fill(topology, [](int32_t i, int32_t j) { return (i * 7 + j) % 40 == 0 ? 1 + (i + j) % 3 : 0; }));
  EndingTransport transport(0, job.processes);
  Runner::DropRows(&transport, *job.site, tag);
  uint64_t largest = 0;
  std::map<uint64_t, std::pair<int32_t, int32_t>> sent[2], received[2];  // devices by tag, by the process that sends
  for (int32_t process = 0; process < 2; ++process) {
    MessageSchedule schedule;
    job.Build(process, &schedule);
    for (const Step& step : schedule.steps()) {
      if (step.action == Action::kCopy) continue;
      const bool sends = step.action == Action::kSend;
      largest = std::max(largest, schedule.TagOf(step));
      const std::pair<int32_t, int32_t> devices(sends ? step.here : step.peer, sends ? step.peer : step.here);
      CHECK((sends ? sent[process] : received[1 - process]).emplace(schedule.TagOf(step), devices).second);
      CHECK(std::any_of(transport.dropped.begin(), transport.dropped.end(), [&](const auto& dropped) {
        return (((tag + schedule.TagOf(step)) ^ dropped.first) & dropped.second) == 0;
      }));
    }
    schedule.Release();
  }
  for (const int sender : {0, 1}) CHECK(!sent[sender].empty() && sent[sender] == received[sender]);
  CHECK_GT(largest, 0xFFFFU);
  for (const auto& [value, mask] : transport.dropped) CHECK_EQ(mask, ~uint64_t{0xFFFF});
}

TEST(BytesAhead) {
  CallSite site;
  CHECK_EQ(network::WindowOf(site), std::numeric_limits<int64_t>::max());
  site.nic_bandwidth = 1'000'000;
  CHECK_EQ(network::WindowOf(site), 32768 + 5'000);
  site.scale_out_latency_ns = 1'000'000;
  CHECK_EQ(network::WindowOf(site), 32768 + 7'000);
  site.nic_bandwidth = std::numeric_limits<int64_t>::max();
  CHECK_GT(network::WindowOf(site), int64_t{1} << 40);
}

}  // namespace
}  // namespace fastjax::test
