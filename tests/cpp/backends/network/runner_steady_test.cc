// What runners cost when nothing is new to them, and groups with more pairs of devices than 16 bits of a tag can tell
// apart. On transports without threads: every call is this test's.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "backends/network/runner.h"
#include "planner/planner.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/group_exchange.h"
#include "support/network_rig.h"
#include "support/traffic.h"
#include "support/unlinked_transport.h"

namespace fastjax::test {
namespace {

using network::Limits;
using network::MessageSchedule;
using network::Runner;
using planner::Scheduler;

struct Request {
  int32_t from;
  int32_t to;
  uint64_t tag;
  const Iov* iovs;
  int32_t count;
  Listener* listener;
  int64_t cookie;
};

// Requests of all transports, oldest first.
struct Hub {
  std::vector<Request> sends;
  std::vector<Request> receives;
};

class QueueTransport final : public UnlinkedTransport<> {
 public:
  QueueTransport(Hub* hub, int32_t process, int32_t processes) : UnlinkedTransport(process, processes), hub_(*hub) {
    for (auto* tasks : {&tasks_, &running_}) tasks->reserve(1000);
  }

  bool Post(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
    return true;
  }
  void Send(const Route& route, uint64_t tag, const Iov* iovs, int32_t count, Listener* listener,
            int64_t cookie) override {
    hub_.sends.push_back({process(), route.process, tag, iovs, count, listener, cookie});
  }
  void Receive(const Route& route, uint64_t tag, const Iov* iovs, int32_t count, Listener* listener,
               int64_t cookie) override {
    hub_.receives.push_back({route.process, process(), tag, iovs, count, listener, cookie});
  }
  void Drop(uint64_t tag, uint64_t mask) override { dropped.emplace_back(tag, mask); }

  bool RunTasks() {
    if (tasks_.empty()) return false;
    running_.swap(tasks_);
    for (auto& task : running_) task();
    running_.clear();
    return true;
  }

  std::vector<std::pair<uint64_t, uint64_t>> dropped;

 private:
  Hub& hub_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::function<void()>> running_;
};

void Move(const Request& send, const Request& receive) {
  int32_t out = 0;
  size_t skip = 0;
  for (int32_t i = 0; i < send.count; ++i) {
    const auto* data = static_cast<const std::byte*>(send.iovs[i].data);
    for (size_t left = send.iovs[i].bytes; left > 0;) {
      if (!CHECK_LT(out, receive.count)) return;
      const Iov& iov = receive.iovs[out];
      const size_t bytes = std::min(left, iov.bytes - skip);
      std::memcpy(static_cast<std::byte*>(iov.data) + skip, data, bytes);
      data += bytes;
      left -= bytes;
      skip += bytes;
      if (skip == iov.bytes) {
        ++out;
        skip = 0;
      }
    }
  }
  CHECK_EQ(out, receive.count);
}

// Ends the oldest send that has a receive.
bool MoveOne(Hub* hub) {
  for (size_t s = 0; s < hub->sends.size(); ++s) {
    const Request send = hub->sends[s];
    for (size_t r = 0; r < hub->receives.size(); ++r) {
      const Request receive = hub->receives[r];
      if (receive.tag != send.tag || receive.to != send.to) continue;
      CHECK_EQ(receive.from, send.from);
      hub->sends.erase(hub->sends.begin() + static_cast<std::ptrdiff_t>(s));
      hub->receives.erase(hub->receives.begin() + static_cast<std::ptrdiff_t>(r));
      Move(send, receive);
      receive.listener->OnDone(receive.cookie, Status::Ok());
      send.listener->OnDone(send.cookie, Status::Ok());
      return true;
    }
  }
  return false;
}

// All processes of one group, whose rows hold the numbers of their first byte's place.
struct Job : GroupExchange {
  Job(const planner::Topology& topology, Scheduler scheduler, const Matrix& rows, int32_t seed)
      : GroupExchange(topology.devices(), seed) {
    processes = Deal(Owners::kServers, topology.devices_per_server, &random, site.get());
    Plan(topology, scheduler, rows, 1);
    Bring(false, 8);
    for (const ExchangeArgs& device : args) {
      sources.emplace_back(static_cast<size_t>(device.source_rows));
      outputs.emplace_back(static_cast<size_t>(device.destination_rows), -1);
      for (size_t i = 0; i < sources.back().size(); ++i) {
        sources.back()[i] = static_cast<int64_t>(sources.size() * 1'000'000 + i);
      }
    }
    for (size_t p = 0; p < args.size(); ++p) {
      args[p].source = reinterpret_cast<const std::byte*>(sources[p].data());
      args[p].destination = reinterpret_cast<std::byte*>(outputs[p].data());
    }
    hub.sends.reserve(10'000);
    hub.receives.reserve(10'000);
    for (int32_t process = 0; process < processes; ++process) {
      transports.push_back(std::make_unique<QueueTransport>(&hub, process, processes));
      runners.push_back(std::make_unique<Runner>());
      schedules.push_back(std::make_unique<MessageSchedule>());
      plans.emplace_back();
      Decode(process, false, &plans.back());
      CHECK_EQ(schedules.back()->Build(*site, 0, process, args, plans.back(), traffic).message, "");
    }
  }
  ~Job() {
    for (const auto& schedule : schedules) schedule->Release();
  }

  // Returns what was allocated.
  long Run(uint64_t tag) {
    const long before = Allocations();
    int32_t ended = 0;
    for (int32_t p = 0; p < processes; ++p) {
      runners[p]->Start(transports[p].get(), site.get(), 0, schedules[p].get(), tag, 0, [&ended](const Status& status) {
        CHECK(status.ok());
        ++ended;
      });
    }
    bool busy = true;
    while (busy) {
      busy = MoveOne(&hub);
      for (const auto& transport : transports) busy = transport->RunTasks() || busy;
    }
    const long allocations = Allocations() - before;
    CHECK_EQ(ended, processes);
    for (const Update& update : Updates(layout)) {
      for (int64_t row = 0; row < update.rows; ++row) {
        CHECK_EQ(outputs[update.receiver][static_cast<size_t>(update.output_offset + row)],
                 sources[update.sender][static_cast<size_t>(update.input_offset + row)]);
      }
    }
    for (auto& output : outputs) std::fill(output.begin(), output.end(), -1);
    return allocations;
  }

  int32_t processes = 0;
  std::vector<std::vector<int64_t>> sources;
  std::vector<std::vector<int64_t>> outputs;
  Hub hub;
  std::vector<std::unique_ptr<QueueTransport>> transports;
  std::vector<std::unique_ptr<Runner>> runners;
  std::list<DevicePlans> plans;  // by process
  std::vector<std::unique_ptr<MessageSchedule>> schedules;
};

TEST(NoAllocations) {
  const planner::Topology topology = MakeTopology(3, 2);
  for (const Scheduler scheduler : {Scheduler::kFast, Scheduler::kDirect}) {
    Job job(topology, scheduler, Fill(topology, [](int32_t i, int32_t j) { return 5 + (7 * i + 3 * j) % 40; }), 1);
    CHECK_GT(job.Run(uint64_t{1} << 16), 0);
    CHECK_EQ(job.Run(uint64_t{2} << 16), 0);
  }
}

// Also when some tags need more bits than are theirs, no two pairs of devices share one, and all of them can be
// dropped.
TEST(ManyPairs) {
  const planner::Topology topology = MakeTopology(2, 150);
  const uint64_t tag = uint64_t{0xABCDEF} << 16;
  Job job(topology, Scheduler::kDirect,
          Fill(topology, [](int32_t i, int32_t j) { return (i * 7 + j) % 40 == 0 ? 1 + (i + j) % 3 : 0; }), 2);
  job.Run(tag);
  QueueTransport* const transport = job.transports[0].get();
  Runner::DropRows(transport, *job.site, tag);
  uint64_t largest = 0;
  for (const auto& schedule : job.schedules) {
    for (const auto& step : schedule->steps()) {
      if (step.action == Action::kCopy) continue;
      const uint64_t of_step = tag + schedule->TagOf(step);
      largest = std::max(largest, schedule->TagOf(step));
      CHECK(std::any_of(transport->dropped.begin(), transport->dropped.end(),
                        [&](const auto& dropped) { return ((of_step ^ dropped.first) & dropped.second) == 0; }));
    }
  }
  CHECK_GT(largest, 0xFFFFU);
  for (const auto& [value, mask] : transport->dropped) CHECK_EQ(mask, ~uint64_t{0xFFFF});
}

}  // namespace
}  // namespace fastjax::test
