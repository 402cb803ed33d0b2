#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <new>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "length.h"
#include "planner/table.h"

namespace {

// What this program, which has one thread, holds of operator new.
int64_t g_live_bytes = 0;
// In front of every block, its size, with room that keeps the block aligned.
constexpr std::size_t kPrefix = alignof(std::max_align_t);
static_assert(kPrefix >= sizeof(std::size_t));

}  // namespace

void* operator new(std::size_t size) {
  auto* memory = static_cast<unsigned char*>(std::malloc(size + kPrefix));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(memory) = size;
  g_live_bytes += static_cast<int64_t>(size);
  return memory + kPrefix;
}

void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  unsigned char* memory = static_cast<unsigned char*>(block) - kPrefix;
  g_live_bytes -= static_cast<int64_t>(*reinterpret_cast<std::size_t*>(memory));
  std::free(memory);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace fastjax::bench {
namespace {

using planner::Planner;
using planner::Topology;
using Clock = std::chrono::steady_clock;

constexpr double kMeanRows = 4096;
// Up to which all transfers of a plan are looked at.
constexpr int32_t kDescribedDevices = 1024;

using Ring = std::vector<std::vector<int64_t>>;

double Microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

struct Effort {
  int32_t matrices;  // enough that none is still in the caches' fastest part, as far as memory allows
  int32_t rounds;
  int32_t plans;  // in each round
};

Effort EffortFor(int32_t devices) {
  if (devices <= 64) return {16, 40, 100};
  if (devices <= 160) return {16, 100, 8};
  if (devices <= 320) return {16, 60, 4};
  if (devices <= 1024) return {4, 60, 1};
  return {2, 6, 1};
}

// Of this thread: unlike the clock on the wall, it does not go on while other programs run.
double CpuMicroseconds() {
  timespec now = {};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) std::abort();
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Times stages, then all that one device needs.
class Stopwatch {
 public:
  template <typename Decide, typename List>
  void Time(Decide decide, List list) {
    const auto start = Clock::now();
    decide();
    const auto decided = Clock::now();
    list();
    const auto end = Clock::now();
    stages_only_.push_back(Microseconds(decided - start));
    whole_.push_back(Microseconds(end - start));
  }
  // Some times in a row, for their processor time.
  template <typename Once>
  void Round(int32_t times, Once once) {
    const double start = CpuMicroseconds();
    for (int32_t i = 0; i < times; ++i) once();
    processor_.push_back((CpuMicroseconds() - start) / times);
  }
  void Restart() {
    for (auto* times : {&stages_only_, &whole_, &processor_}) times->clear();
  }
  Spread stages_only() const { return MakeSpread(stages_only_); }
  Spread whole() const { return MakeSpread(whole_); }
  Spread processor() const { return MakeSpread(processor_); }

 private:
  std::vector<double> stages_only_;
  std::vector<double> whole_;
  std::vector<double> processor_;  // per plan, a mean over each round
};

// Takes another matrix and another device each time.
class TimedPlanner {
 public:
  TimedPlanner(const Topology& topology, const Ring& ring)
      : words_(planner::TableWords(topology, kScheduler)),
        before_(g_live_bytes),
        plan_(topology, kScheduler, kRowBytes),
        ring_(ring) {}

  void Once() {
    const int64_t* traffic = ring_[static_cast<size_t>(count_) % ring_.size()].data();
    const auto device = static_cast<int32_t>(count_++ % plan_.topology().devices());
    watch_.Time([&] { plan_.Plan(traffic); },
                [&] {
                  if (!WriteTable(&plan_, device, words_.data())) std::abort();
                });
  }
  void Round(int32_t times) {
    watch_.Round(times, [this] { Once(); });
  }
  void EndWarmUp() {
    watch_.Restart();
    memory_bytes_ = g_live_bytes - before_;
  }
  Planner* plan() { return &plan_; }
  PlannerResult Times() const {
    PlannerResult result = {};
    result.plan = watch_.whole();
    result.stages_only = watch_.stages_only();
    result.processor = watch_.processor();
    result.memory_bytes = memory_bytes_;
    result.table_bytes = static_cast<int64_t>(words_.size() * sizeof(int32_t));
    return result;
  }

 private:
  std::vector<int32_t> words_;
  int64_t before_;
  int64_t memory_bytes_ = 0;
  Planner plan_;
  const Ring& ring_;
  int64_t count_ = 0;
  Stopwatch watch_;
};

void Add(double value, size_t count, Range* range) {
  range->mean += value / static_cast<double>(count);
  range->max = std::max(range->max, value);
}

// Of exchanges that take too long, the first matrix only.
void DescribePlans(const Ring& ring, Planner* plan, PlannerResult* result) {
  const bool small = plan->topology().devices() <= kDescribedDevices;
  const size_t described = small ? ring.size() : 1;
  Range lengths = {};
  bool lengths_known = true;
  double predicted = 0;
  for (size_t i = 0; i < described; ++i) {
    plan->Plan(ring[i].data());
    Add(plan->num_matchings(), described, &result->matchings);
    Add(plan->num_stages(), described, &result->stages);
    const std::optional<double> length = LengthByBound(ring[i], plan);
    lengths_known = lengths_known && length.has_value();
    Add(length.value_or(0), described, &lengths);
    if (small) predicted += plan->PredictedTime() / plan->LowerBound() / static_cast<double>(described);
  }
  if (lengths_known) result->length_by_bound = lengths;
  if (small) result->predicted_by_bound = predicted;
}

}  // namespace

Result Run(int32_t devices, Skew skew) {
  Topology topology;
  topology.servers = devices / kDevicesPerServer;
  topology.devices_per_server = kDevicesPerServer;
  const Effort effort = EffortFor(devices);
  std::mt19937_64 random(devices);
  Ring ring;
  for (int32_t i = 0; i < effort.matrices; ++i) ring.push_back(MakeTraffic(skew, devices, kMeanRows, &random));

  TimedPlanner ours(topology, ring);
  for (int32_t i = 0; i < effort.matrices; ++i) ours.Once();
  ours.EndWarmUp();
  for (int32_t round = 0; round < effort.rounds; ++round) ours.Round(effort.plans);

  Result result = {devices, skew, effort.matrices, ours.Times()};
  DescribePlans(ring, ours.plan(), &result.planner);
  return result;
}

}  // namespace fastjax::bench
