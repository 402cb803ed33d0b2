#include "simulator/simulator.h"

#include <algorithm>
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
    if (waits_for_[number] == 0) starts_.emplace(task(number).start_up, number);
  }
}

void Simulator::IndexEdges() {
  first_after_.assign(program_.tasks.size() + 1, 0);
  for (const Edge& edge : program_.edges) {
    ++first_after_[edge.before + 1];
    ++waits_for_[edge.after];
  }
  for (size_t i = 1; i < first_after_.size(); ++i) first_after_[i] += first_after_[i - 1];
  after_.resize(program_.edges.size());
  std::vector<int32_t> next(first_after_.begin(), first_after_.end() - 1);
  for (const Edge& edge : program_.edges) {
    after_[next[edge.before]++] = edge.after;
  }
}

void Simulator::FindLatest(double resolution) {
  std::vector<double> bytes(program_.capacities.size(), 0);
  for (const Task& each : program_.tasks) {
    for (const int32_t link : each.links) {
      if (link != kNoLink) bytes[link] += each.bytes;
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
    while (!dues_.empty() && dues_.top().first <= now) {
      const Moment due = dues_.top();
      dues_.pop();
      const Pool& pool = pools_[due.second];
      // Those that were dissolved meanwhile have left their moments behind.
      if (pool.active && pool.due == due.first) Dissolve(due.second, now);
    }
    while (!starts_.empty() && starts_.top().first <= now) {
      const int32_t number = starts_.top().second;
      starts_.pop();
      Begin(number, now);
    }
    Repool(now);
  }
  return false;
}

double Simulator::NextMoment() const {
  const double start = starts_.empty() ? kNever : starts_.top().first;
  return std::min(start, dues_.empty() ? kNever : dues_.top().first);
}

// Ends those of its tasks that are done and lets go of the others.
void Simulator::Dissolve(int32_t number, double now) {
  Pool& pool = pools_[number];
  pool.active = false;
  const double until = now * (1 + kRounding);
  finished_.clear();
  for (const int32_t each : pool.tasks) {
    for (const int32_t link : task(each).links) {
      if (link != kNoLink) pool_of_[link] = -1;
    }
    if (ends_at_[each] <= until) {
      finished_.push_back(each);
    } else {
      left_[each] = std::max(left_[each] - rate_[each] * (now - pool.since), 0.0);
      loose_.push_back(each);
    }
  }
  pool.tasks.clear();
  free_pools_.push_back(number);
  for (const int32_t each : finished_) Finish(each, std::min(ends_at_[each], now), now);
}

void Simulator::Begin(int32_t number, double now) {
  if (start_[number] == kNotYet) start_[number] = now;
  left_[number] = task(number).bytes;
  if (!(left_[number] > 0)) return Finish(number, now, now);
  const double admitted = Admitted(task(number), now);
  if (admitted > now) {
    starts_.emplace(admitted, number);
    return;
  }
  for (const int32_t link : task(number).links) {
    if (link == kNoLink) continue;
    const int32_t pool = pool_of_[link];
    if (pool >= 0) Dissolve(pool, now);
  }
  loose_.push_back(number);
}

// When a large pool next takes in tasks that have begun.
double Simulator::Admitted(const Task& starting, double now) const {
  double admitted = now;
  for (const int32_t link : starting.links) {
    const int32_t number = link == kNoLink ? -1 : pool_of_[link];
    if (number < 0) continue;
    const Pool& pool = pools_[number];
    if (pool.tasks.size() < kLargePool) continue;
    admitted = std::max(admitted, std::min(pool.since + latest_, pool.due));
  }
  return admitted;
}

void Simulator::Finish(int32_t number, double at, double now) {
  end_[number] = at;
  is_done_[number] = true;
  for (int32_t k = first_after_[number]; k < first_after_[number + 1]; ++k) {
    const int32_t next = after_[k];
    ready_[next] = std::max(ready_[next], at);
    if (--waits_for_[next] > 0) continue;
    starts_.emplace(std::max(ready_[next] + task(next).start_up, now), next);
  }
}

int32_t Simulator::Root(int32_t link) {
  int32_t root = link;
  while (parent_[root] >= 0) root = parent_[root];
  while (link != root) link = std::exchange(parent_[link], root);
  return root;
}

// Puts loose tasks into pools of those that share links.
void Simulator::Repool(double now) {
  for (const int32_t each : loose_) {
    for (const int32_t link : task(each).links) {
      if (link != kNoLink) parent_[link] = -1;
    }
  }
  for (const int32_t each : loose_) {
    const auto& links = task(each).links;
    for (const int32_t link : links) {
      if (link == kNoLink) continue;
      const int32_t one = Root(links[0]), other = Root(link);
      if (one != other) parent_[other] = one;
    }
  }
  opened_.clear();
  for (const int32_t each : loose_) {
    int32_t& number = pool_of_[Root(task(each).links[0])];
    if (number < 0) {
      if (free_pools_.empty()) {
        free_pools_.push_back(static_cast<int32_t>(pools_.size()));
        pools_.emplace_back();
      }
      number = free_pools_.back();
      free_pools_.pop_back();
      opened_.push_back(number);
    }
    pools_[number].tasks.push_back(each);
  }
  for (const int32_t number : opened_) Open(&pools_[number], number, now);
}

void Simulator::Open(Pool* pool, int32_t number, double now) {
  sharing_.Share(pool->tasks, &rates_);
  for (size_t k = 0; k < pool->tasks.size(); ++k) {
    const int32_t each = pool->tasks[k];
    rate_[each] = rates_[k];
    ends_at_[each] = rates_[k] > 0 ? now + left_[each] / rates_[k] : kNever;
    for (const int32_t link : task(each).links) {
      if (link != kNoLink) pool_of_[link] = number;
    }
  }
  pool->since = now;
  pool->active = true;
  pool->due = Due(*pool);
  dues_.emplace(pool->due, number);
}

double Simulator::Due(const Pool& pool) {
  const size_t together = pool.tasks.size() < kLargePool ? 1 : pool.tasks.size() / kShareOfPool;
  double first = kNever;
  for (const int32_t each : pool.tasks) first = std::min(first, ends_at_[each]);
  if (together == 1 || !(latest_ > 0)) return first;
  sorted_.clear();
  for (const int32_t each : pool.tasks) sorted_.push_back(ends_at_[each]);
  const auto last = sorted_.begin() + static_cast<std::ptrdiff_t>(together) - 1;
  std::nth_element(sorted_.begin(), last, sorted_.end());
  return std::min(*last, first + latest_);
}

}  // namespace fastjax::simulator
