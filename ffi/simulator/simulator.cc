#include "simulator/simulator.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace fastjax::simulator {
namespace {

constexpr double kNotYet = -1;
constexpr double kNever = std::numeric_limits<double>::infinity();

// A fluid model: bytes flow at rates that change only when a task begins or ends, so between two such events every end
// is known, and the next event is the least of a heap. What an event changes is confined to a pool, a connected
// component of the graph of tasks and links; components are found by union-find over links.
//
// Invariant between events: every task that flows is in exactly one active pool, every link of it belongs to that pool,
// and the pool's moment is in dues_. Moments of pools that were dissolved stay there and are known by their time.

// What ends at the same time but for rounding ends together.
constexpr double kRounding = 1e-12;
constexpr size_t kLargePool = 1024;
constexpr size_t kShareOfPool = 64;

template <typename T>
void Push(std::vector<T>* heap, T value) {
  heap->push_back(value);
  std::push_heap(heap->begin(), heap->end(), std::greater<>());
}

template <typename T>
T Pop(std::vector<T>* heap) {
  std::pop_heap(heap->begin(), heap->end(), std::greater<>());
  const T value = heap->back();
  heap->pop_back();
  return value;
}

}  // namespace

Simulator::Simulator(Program program, double resolution)
    : program_(std::move(program)),
      sharing_(program_),
      waits_for_(program_.tasks.size(), 0),
      ready_(program_.tasks.size(), 0),
      start_(program_.tasks.size(), kNotYet),
      end_(program_.tasks.size(), 0),
      left_(program_.tasks.size(), 0),
      rate_(program_.tasks.size(), 0),
      ends_at_(program_.tasks.size(), kNever),
      is_done_(program_.tasks.size(), false),
      pool_of_(program_.capacities.size(), -1),
      parent_(program_.capacities.size(), -1) {
  IndexEdges();
  FindLatest(resolution);
  for (int32_t number = 0; number < static_cast<int32_t>(program_.tasks.size()); ++number) {
    if (waits_for_[static_cast<size_t>(number)] == 0) Push(&starts_, Moment(task(number).start_up, number));
  }
}

void Simulator::IndexEdges() {
  first_after_.assign(program_.tasks.size() + 1, 0);
  for (const Edge& edge : program_.edges) {
    ++first_after_.at(static_cast<size_t>(edge.before) + 1);
    ++waits_for_.at(static_cast<size_t>(edge.after));
  }
  for (size_t i = 1; i < first_after_.size(); ++i) first_after_[i] += first_after_[i - 1];
  after_.resize(program_.edges.size());
  std::vector<int32_t> next(first_after_.begin(), first_after_.end() - 1);
  for (const Edge& edge : program_.edges) {
    after_[static_cast<size_t>(next[static_cast<size_t>(edge.before)]++)] = edge.after;
  }
}

void Simulator::FindLatest(double resolution) {
  std::vector<double> bytes(program_.capacities.size(), 0);
  for (const Task& each : program_.tasks) {
    for (const int32_t link : each.links) {
      if (link != kNoLink) bytes[static_cast<size_t>(link)] += each.bytes;
    }
  }
  for (size_t link = 0; link < bytes.size(); ++link) {
    if (bytes[link] > 0) latest_ = std::max(latest_, resolution * bytes[link] / program_.capacities[link]);
  }
}

bool Simulator::Advance(int64_t events) {
  for (; events > 0; --events) {
    const double now = NextMoment();
    if (now == kNever) return true;
    loose_.clear();
    while (!dues_.empty() && dues_.front().first <= now) {
      const Moment due = Pop(&dues_);
      const Pool& pool = pools_[static_cast<size_t>(due.second)];
      // Those that were dissolved meanwhile have left their moments behind.
      if (pool.active && pool.due == due.first) Dissolve(due.second, now);
    }
    while (!starts_.empty() && starts_.front().first <= now) Begin(Pop(&starts_).second, now);
    Repool(now);
  }
  return false;
}

double Simulator::NextMoment() const {
  const double start = starts_.empty() ? kNever : starts_.front().first;
  return std::min(start, dues_.empty() ? kNever : dues_.front().first);
}

// Ends those of its tasks that are done and lets go of the others.
void Simulator::Dissolve(int32_t number, double now) {
  Pool& pool = pools_[static_cast<size_t>(number)];
  pool.active = false;
  const double until = now * (1 + kRounding);
  finished_.clear();
  for (const int32_t each : pool.tasks) {
    const auto i = static_cast<size_t>(each);
    for (const int32_t link : task(each).links) {
      if (link != kNoLink) pool_of_[static_cast<size_t>(link)] = -1;
    }
    if (ends_at_[i] <= until) {
      finished_.push_back(each);
    } else {
      left_[i] = std::max(left_[i] - rate_[i] * (now - pool.since), 0.0);
      loose_.push_back(each);
    }
  }
  pool.tasks.clear();
  free_pools_.push_back(number);
  for (const int32_t each : finished_) Finish(each, std::min(ends_at_[static_cast<size_t>(each)], now), now);
}

void Simulator::Begin(int32_t number, double now) {
  const auto i = static_cast<size_t>(number);
  if (start_[i] == kNotYet) start_[i] = now;
  left_[i] = task(number).bytes;
  if (!(left_[i] > 0)) {
    Finish(number, now, now);
    return;
  }
  const double admitted = Admitted(task(number), now);
  if (admitted > now) {
    Push(&starts_, Moment(admitted, number));
    return;
  }
  for (const int32_t link : task(number).links) {
    if (link == kNoLink) continue;
    const int32_t pool = pool_of_[static_cast<size_t>(link)];
    if (pool >= 0) Dissolve(pool, now);
  }
  loose_.push_back(number);
}

// When a large pool next takes in tasks that have begun.
double Simulator::Admitted(const Task& starting, double now) const {
  double admitted = now;
  for (const int32_t link : starting.links) {
    const int32_t number = link == kNoLink ? -1 : pool_of_[static_cast<size_t>(link)];
    if (number < 0) continue;
    const Pool& pool = pools_[static_cast<size_t>(number)];
    if (pool.tasks.size() < kLargePool) continue;
    admitted = std::max(admitted, std::min(pool.since + latest_, pool.due));
  }
  return admitted;
}

void Simulator::Finish(int32_t number, double at, double now) {
  const auto i = static_cast<size_t>(number);
  end_[i] = at;
  is_done_[i] = true;
  ++done_;
  for (auto k = static_cast<size_t>(first_after_[i]); k < static_cast<size_t>(first_after_[i + 1]); ++k) {
    const auto next = static_cast<size_t>(after_[k]);
    ready_[next] = std::max(ready_[next], at);
    if (--waits_for_[next] == 0) MakeReady(after_[k], now);
  }
}

void Simulator::MakeReady(int32_t number, double now) {
  const double start = ready_[static_cast<size_t>(number)] + task(number).start_up;
  Push(&starts_, Moment(std::max(start, now), number));
}

int32_t Simulator::Root(int32_t link) {
  int32_t root = link;
  while (parent_[static_cast<size_t>(root)] >= 0) root = parent_[static_cast<size_t>(root)];
  while (link != root) link = std::exchange(parent_[static_cast<size_t>(link)], root);
  return root;
}

// Puts loose tasks into pools of those that share links.
void Simulator::Repool(double now) {
  for (const int32_t each : loose_) {
    for (const int32_t link : task(each).links) {
      if (link != kNoLink) parent_[static_cast<size_t>(link)] = -1;
    }
  }
  for (const int32_t each : loose_) {
    const auto& links = task(each).links;
    for (const int32_t link : links) {
      if (link == kNoLink) continue;
      const int32_t one = Root(links[0]), other = Root(link);
      if (one != other) parent_[static_cast<size_t>(other)] = one;
    }
  }
  opened_.clear();
  for (const int32_t each : loose_) {
    const auto root = static_cast<size_t>(Root(task(each).links[0]));
    int32_t& number = pool_of_[root];
    if (number < 0) {
      if (free_pools_.empty()) {
        free_pools_.push_back(static_cast<int32_t>(pools_.size()));
        pools_.emplace_back();
      }
      number = free_pools_.back();
      free_pools_.pop_back();
      opened_.push_back(number);
    }
    pools_[static_cast<size_t>(number)].tasks.push_back(each);
  }
  for (const int32_t number : opened_) Open(&pools_[static_cast<size_t>(number)], number, now);
}

void Simulator::Open(Pool* pool, int32_t number, double now) {
  sharing_.Share(pool->tasks, &rates_);
  for (size_t k = 0; k < pool->tasks.size(); ++k) {
    const auto i = static_cast<size_t>(pool->tasks[k]);
    rate_[i] = rates_[k];
    ends_at_[i] = rates_[k] > 0 ? now + left_[i] / rates_[k] : kNever;
    for (const int32_t link : program_.tasks[i].links) {
      if (link != kNoLink) pool_of_[static_cast<size_t>(link)] = number;
    }
  }
  pool->since = now;
  pool->active = true;
  pool->due = Due(*pool);
  Push(&dues_, Moment(pool->due, number));
}

double Simulator::Due(const Pool& pool) {
  const size_t together = pool.tasks.size() < kLargePool ? 1 : pool.tasks.size() / kShareOfPool;
  double first = kNever;
  for (const int32_t each : pool.tasks) first = std::min(first, ends_at_[static_cast<size_t>(each)]);
  if (together == 1 || !(latest_ > 0)) return first;
  sorted_.clear();
  for (const int32_t each : pool.tasks) sorted_.push_back(ends_at_[static_cast<size_t>(each)]);
  const auto last = sorted_.begin() + static_cast<std::ptrdiff_t>(together) - 1;
  std::nth_element(sorted_.begin(), last, sorted_.end());
  return std::min(*last, first + latest_);
}

}  // namespace fastjax::simulator
