// Implements how a runner moves rows between the devices of its process.
#include <algorithm>
#include <functional>

#include "backends/network/runner.h"
#include "runtime/fault_points.h"

namespace fastjax::network {
namespace {

using planner::Phase;
using std::chrono::steady_clock;

constexpr int64_t kLast = int64_t{1} << 41;
// Copies that nothing waits for share jobs of about so many bytes, since the end of each job wakes the transport's
// thread.
constexpr int64_t kJobBytes = 1 << 20;
// Below this, waking the pool costs more than it saves.
constexpr int64_t kPooledBytes = 64 << 10;
// The transport's thread copies up to so many bytes before it looks at the network again.
constexpr int64_t kSliceBytes = 256 << 10;
// The most jobs of a runner in the pool, for each thread. The pool runs jobs in order; with more, copies that the
// network waits for would be queued after others.
constexpr int64_t kJobsPerThread = 2;

// Copies that the network waits for come first, in order of stages; those that nothing waits for come last.
int64_t PriorityOf(const Step& step) {
  switch (step.phase) {
    case Phase::kBalance:
      return 2 * int64_t{step.stage};
    case Phase::kScaleOut:
      return 2 * int64_t{step.stage} + 1;
    case Phase::kRedistribute:
      return (int64_t{1} << 40) + step.stage;
    case Phase::kLocal:
      break;
  }
  return kLast;
}

}  // namespace

void Runner::AddCopies(int32_t round_index) {
  const Round& round = schedule_->rounds()[round_index];
  for (int32_t i = round.first_step; i < round.first_step + round.steps; ++i) {
    const Step& step = schedule_->steps()[i];
    ready_.emplace_back(PriorityOf(step), i);
    std::push_heap(ready_.begin(), ready_.end(), std::greater<>());
    if (step.phase == Phase::kLocal) ready_last_ += schedule_->rows()[i].bytes;
  }
}

// Begins the next copy, and returns it.
int32_t Runner::TakeReady() {
  const int32_t step_index = ready_.front().second;
  const Step& step = schedule_->steps()[step_index];
  std::pop_heap(ready_.begin(), ready_.end(), std::greater<>());
  ready_.pop_back();
  if (step.phase == Phase::kLocal) ready_last_ -= schedule_->rows()[step_index].bytes;
  states_[step_index] = State::kBegun;
  FaultPoints::Get().AtStep(order_, step.phase, schedule_->stages()[step.stage] + 1);
  return step_index;
}

void Runner::Copy() {
  int64_t copied = 0;
  while (failure_.ok() && !ready_.empty() && !copies_later_) {
    const int32_t first = ready_.front().second;
    const bool local = schedule_->steps()[first].phase == Phase::kLocal;
    const bool pooled = (local ? ready_last_ : schedule_->rows()[first].bytes) >= kPooledBytes;
    if (pooled && copies_on_pool_ >= kJobsPerThread * std::max(1, CopyPool::Get().threads())) return;
    if (!pooled && copied >= kSliceBytes) {
      copies_later_ = PostCounted([this] {
        copies_later_ = false;
        Copy();
      });
      if (copies_later_) return;
      copied = 0;
    }
    if (pooled && CopyOnPool()) continue;
    const int32_t step_index = TakeReady();
    CopyHere(step_index);
    copied += schedule_->rows()[step_index].bytes;
    EndCopy(step_index);
  }
}

void Runner::CopyHere(int32_t step_index) const {
  const StepRows& rows = schedule_->rows()[step_index];
  for (int32_t i = 0; i < rows.count; ++i) {
    const CopyOp& op = schedule_->copies()[rows.first + i];
    kernels::Copy(op.dst, op.src, static_cast<size_t>(op.bytes), op.destination);
  }
}

// The next copy; or of those that nothing waits for a job's worth. Where there is no memory for that, what was begun is
// copied here. False if nothing was.
bool Runner::CopyOnPool() {
  Copying* copying = nullptr;
  const Status begun = Guarded([&] {
    copying = copying_.Take();
    copying->runner = this;
    copying->steps.clear();
    copying->steps.reserve(ready_.size());
    copying->job.Clear();
    const bool last = ready_.front().first == kLast;
    int64_t bytes = 0;
    do {
      copying->steps.push_back(TakeReady());
      bytes += schedule_->rows()[copying->steps.back()].bytes;
    } while (last && !ready_.empty() && bytes < kJobBytes);
    for (const int32_t step_index : copying->steps) {
      const StepRows& rows = schedule_->rows()[step_index];
      for (int32_t i = 0; i < rows.count; ++i) copying->job.Add(schedule_->copies()[rows.first + i]);
    }
    // The captures are small enough for std::function to hold without allocating.
    CopyPool::Get().Run(&copying->job, order_, [copying] {
      Runner* const runner = copying->runner;
      runner->Return([copying] { copying->runner->CopyDone(copying); });
    });
  });
  if (begun.ok()) {
    ++outstanding_;
    ++copies_on_pool_;
    return true;
  }
  if (copying == nullptr) return false;
  for (const int32_t step_index : copying->steps) {
    CopyHere(step_index);
    EndCopy(step_index);
  }
  const bool any = !copying->steps.empty();
  copying_.Return(copying);
  return any;
}

void Runner::EndCopy(int32_t step_index) {
  states_[step_index] = State::kEnded;
  last_progress_ = steady_clock::now();
  if (failure_.ok()) EndStep(step_index);
}

void Runner::CopyDone(Copying* copying) {
  --outstanding_;
  --copies_on_pool_;
  for (const int32_t step_index : copying->steps) EndCopy(step_index);
  copying_.Return(copying);
  if (failure_.ok()) Copy();
  Settle();
}

}  // namespace fastjax::network
