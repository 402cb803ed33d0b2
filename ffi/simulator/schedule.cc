#include "simulator/schedule.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace fastjax::simulator {
namespace {

using planner::Phase;
using planner::Topology;

constexpr double kNanoseconds = 1e-9;

// Messages of each device (or of all, as device 0), stage by stage: a message waits for all messages of the stage that
// is `window` before its own, of the stages in which the device has any. That is flow control by credits: a device has
// `window` stages in flight, and the end of the oldest admits the next. Instead of an edge from every message of one
// stage to every message of the other, there is a gate, a task without bytes, that waits for the former and that the
// latter wait for: edges grow with the messages, not with their square.
class Sequence {
 public:
  Sequence(Program* program, int32_t devices, int32_t window) : program_(program), of_(devices) {
    for (Step& step : of_) step.gates.assign(window, -1);
  }

  // Stages must come in order.
  void Add(int32_t device, int32_t stage, int32_t message) {
    Step& step = of_[device];
    if (step.stage != stage) {
      step.stage = stage;
      std::rotate(step.gates.begin(), step.gates.begin() + 1, step.gates.end());
      step.gates.back() = Gate(std::exchange(step.members, {}));
    }
    step.members.push_back(message);
    if (step.gates.front() >= 0) program_->edges.push_back({step.gates.front(), message});
  }

 private:
  struct Step {
    int32_t stage = -1;
    std::vector<int32_t> gates;  // a ring of the last `window` stages, the oldest first; -1 for none
    std::vector<int32_t> members;
  };

  // One message is its own gate.
  int32_t Gate(const std::vector<int32_t>& members) {
    if (members.empty()) return -1;
    if (members.size() == 1) return members[0];
    const auto gate = static_cast<int32_t>(program_->tasks.size());
    program_->tasks.emplace_back();
    for (const int32_t member : members) program_->edges.push_back({member, gate});
    return gate;
  }

  Program* program_;
  std::vector<Step> of_;
};

// Makes a graph of tasks of messages: edges say what must be over before a message may start, links what it shares.
// Edges come from rows (messages.cc: a row is sent on when it is there), from the order of stages, which this is mostly
// about, and from posting. Tasks are numbered like messages, and gates and start-ups behind them, so the first times of
// a result are those of messages.
class Scheduler {
 public:
  Scheduler(const Messages& messages, const Topology& topology, int64_t row_bytes, const Fabric& fabric)
      : messages_(messages),
        count_(static_cast<int32_t>(messages.all.size())),
        topology_(topology),
        row_bytes_(static_cast<double>(row_bytes)),
        fabric_(fabric) {}

  Program Run() {
    AddLinks();
    for (const Message& message : messages_.all) program_.tasks.push_back(TaskOf(message));
    program_.edges = messages_.edges;
    if (messages_.stages > 1) {
      KeepInStep();
    } else {
      FollowPieces();
    }
    PostOneByOne();
    if (fabric_.balance_first) BalanceFirst();
    if (messages_.stages > 1 && fabric_.synchronization == Synchronization::kWindow) GoInOrder();
    return std::move(program_);
  }

 private:
  void AddLinks() {
    const int32_t devices = topology_.devices();
    program_.capacities.assign(size_t{2} * devices, static_cast<double>(topology_.scale_up_bandwidth));
    double nics = 0;
    for (int32_t end = 0; end < 2 * devices; ++end) {
      program_.capacities.push_back(static_cast<double>(topology_.nic_bandwidth(end % devices)));
      nics += program_.capacities.back() / 2;
    }
    program_.incast_begin = 3 * devices;
    program_.incast_end = 4 * devices;
    program_.efficiencies = fabric_.efficiencies;
    program_.whole_senders = fabric_.whole_senders;
    program_.capacities.push_back(nics / fabric_.oversubscription);
  }

  Task TaskOf(const Message& message) const {
    const int32_t devices = topology_.devices();
    const bool out = message.phase == Phase::kScaleOut;
    Task task;
    task.bytes = static_cast<double>(message.rows) * row_bytes_;
    const int64_t latency = out ? topology_.scale_out_latency_ns : topology_.scale_up_latency_ns;
    task.start_up = kNanoseconds * static_cast<double>(latency);
    task.links[0] = message.src + (out ? 2 * devices : 0);
    task.links[1] = message.dst + (out ? 3 * devices : devices);
    if (out && fabric_.oversubscription > 1) task.links[2] = 4 * devices;
    // What feeds NICs goes first, and rows that never leave their server take what is left.
    task.priority = message.phase == Phase::kLocal ? 2 : message.phase == Phase::kRedistribute ? 1 : 0;
    return task;
  }

  // Stages follow each other, by one Sequence for each party that has an order to keep: of a device's balance, of what
  // a device sends and of what it receives (credits), or of all devices together (barrier). Messages are listed by
  // stage.
  void KeepInStep() {
    const int32_t devices = topology_.devices();
    const int32_t window = fabric_.synchronization == Synchronization::kWindow ? kStagesInFlight : 1;
    Sequence balancing(&program_, devices, 1);
    Sequence sending(&program_, devices, window);
    Sequence receiving(&program_, devices, window);
    Sequence everywhere(&program_, 1, 1);
    for (int32_t i = 0; i < count_; ++i) {
      const Message& message = messages_.all[i];
      if (message.phase == Phase::kBalance) balancing.Add(message.src, message.stage, i);
      if (message.phase != Phase::kScaleOut) continue;
      if (fabric_.synchronization == Synchronization::kBarrier) {
        everywhere.Add(0, message.stage, i);
        continue;
      }
      sending.Add(message.src, message.stage, i);
      if (fabric_.synchronization != Synchronization::kFree) receiving.Add(message.dst, message.stage, i);
    }
  }

  // A piece follows the one before it, which is listed before it, without a start-up of its own.
  void FollowPieces() {
    for (int32_t i = 0; i < count_; ++i) {
      if (messages_.all[i].piece == 0) continue;
      program_.edges.push_back({i - 1, i});
      program_.tasks[i].start_up = 0;
    }
  }

  // A device that sends to several in one stage takes some time for each that it posts.
  void PostOneByOne() {
    std::vector<int32_t> numbers(count_);
    std::iota(numbers.begin(), numbers.end(), 0);
    const auto in_order = [&](int32_t a, int32_t b) {
      const Message &one = messages_.all[a], &other = messages_.all[b];
      return std::tie(one.stage, one.order) < std::tie(other.stage, other.order);
    };
    std::stable_sort(numbers.begin(), numbers.end(), in_order);
    std::vector<int64_t> posted;
    int32_t stage = -1;
    for (const int32_t i : numbers) {
      const Message& message = messages_.all[i];
      if (message.phase != Phase::kScaleOut || message.piece > 0) continue;
      if (std::exchange(stage, message.stage) != message.stage || posted.empty()) {
        posted.assign(topology_.devices(), 0);
      }
      const int64_t before = posted[message.src]++;
      program_.tasks[i].start_up += kNanoseconds * static_cast<double>(before * topology_.transfer_overhead_ns);
    }
  }

  void BalanceFirst() {
    const auto gate = static_cast<int32_t>(program_.tasks.size());
    program_.tasks.emplace_back();
    for (int32_t i = 0; i < count_; ++i) {
      const Phase phase = messages_.all[i].phase;
      if (phase == Phase::kBalance) program_.edges.push_back({i, gate});
      if (phase == Phase::kScaleOut) program_.edges.push_back({gate, i});
    }
  }

  // What goes from one device to another flows one after the other, while start-ups overlap. So a message that follows
  // another of its pair becomes two tasks: its start-up, which waits for all that the message waited for (edges are led
  // to it), and its bytes, which wait for that and for the one before.
  void GoInOrder() {
    std::unordered_map<int64_t, int32_t> last;  // of a pair of devices
    std::vector<int32_t> starts(count_, -1);
    std::vector<Edge> orders;
    for (int32_t i = 0; i < count_; ++i) {
      const Message& message = messages_.all[i];
      if (message.phase != Phase::kScaleOut) continue;
      const auto [before, first] = last.try_emplace(int64_t{message.src} * topology_.devices() + message.dst, i);
      if (first) continue;
      const int32_t start = starts[i] = StartOf(i);
      orders.insert(orders.end(), {{std::exchange(before->second, i), i}, {start, i}});
    }
    for (Edge& edge : program_.edges) {
      if (edge.after < count_ && starts[edge.after] >= 0) edge.after = starts[edge.after];
    }
    program_.edges.insert(program_.edges.end(), orders.begin(), orders.end());
  }

  // A task of a message's start-up, which that no longer has.
  int32_t StartOf(int32_t message) {
    const double start_up = std::exchange(program_.tasks[message].start_up, 0);
    program_.tasks.emplace_back().start_up = start_up;
    return static_cast<int32_t>(program_.tasks.size()) - 1;
  }

  const Messages& messages_;
  const int32_t count_;
  const Topology& topology_;
  const double row_bytes_;
  const Fabric& fabric_;
  Program program_;
};

}  // namespace

Program Schedule(const Messages& messages, const Topology& topology, int64_t row_bytes, const Fabric& fabric) {
  return Scheduler(messages, topology, row_bytes, fabric).Run();
}

}  // namespace fastjax::simulator
