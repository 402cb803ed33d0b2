#include "runtime/copy_pool.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/copy.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace fastjax {
namespace {

constexpr int64_t kMaxGrainBytes = 1 << 20;
// Reads of another process's memory are cut into larger grains: the system takes more time to begin one.
constexpr int64_t kMinReadBytes = 256 << 10;
constexpr int64_t kGrainsPerThread = 8;

int UsableProcessors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

void PoolJob::RunInline() {
  for (size_t step = 0; BeginStep(step); ++step) RunUnits(0, units_);
}

void PoolJob::SetUnits(int64_t units, int64_t grain) {
  units_ = units;
  grain_ = grain;
  claimed_.store(0, std::memory_order_relaxed);
}

bool PoolJob::ClaimAndRun() {
  const int64_t begin = claimed_.fetch_add(grain_, std::memory_order_relaxed);
  if (begin >= units_) return false;
  RunUnits(begin, std::min(begin + grain_, units_));
  return true;
}

void CopyJob::Clear() {
  count_ = 0;
  step_ops_.clear();
  pid_ = 0;
  failed_.store(false, std::memory_order_relaxed);
  total_bytes_ = 0;
}

void CopyJob::Add(const CopyOp& op) {
  if (op.bytes == 0) return;
  total_bytes_ += op.bytes;
  Grow(count_ + 1);
  ops_[count_] = op;
  ends_[count_++] = total_bytes_;
  step_ops_.assign(1, count_);
}

void CopyJob::Grow(size_t count) {
  if (ops_.size() >= count) return;
  ops_.resize(std::max(count, 2 * ops_.size()));
  ends_.resize(ops_.size());
}

// Sorts by counting: there are few steps and many copies.
void CopyJob::AddSteps(const std::vector<OfStep>& copies, int32_t steps) {
  next_.assign(static_cast<size_t>(steps) + 1, Next{});
  for (const OfStep& copy : copies) next_[static_cast<size_t>(copy.step) + 1].op += copy.op.bytes > 0 ? 1 : 0;
  next_[0].op = count_;
  for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
    if (next_[step + 1].op > 0) step_ops_.push_back(next_[step].op + next_[step + 1].op);
    next_[step + 1].op += next_[step].op;
  }
  count_ = next_.back().op;
  Grow(count_);
  for (const OfStep& copy : copies) {
    if (copy.op.bytes == 0) continue;
    Next& next = next_[static_cast<size_t>(copy.step)];
    next.bytes += copy.op.bytes;
    total_bytes_ += copy.op.bytes;
    ops_[next.op] = copy.op;
    ends_[next.op++] = next.bytes;
  }
}

void CopyJob::AddTo(ProcessReader* reader) const {
  for (size_t i = 0; i < count_; ++i) {
    const CopyOp& op = ops_[i];
    reader->Add(op.dst, reinterpret_cast<uintptr_t>(op.src), static_cast<size_t>(op.bytes));
  }
}

bool CopyJob::BeginStep(size_t step) {
  if (step >= step_ops_.size()) return false;
  first_op_ = step == 0 ? 0 : step_ops_[step - 1];
  last_op_ = step_ops_[step];
  const int64_t bytes = ends_[last_op_ - 1];
  SetUnits(bytes, pid_ == 0 ? CopyPool::GrainBytes(bytes) : CopyPool::GrainBytes(bytes, kMinReadBytes));
  return true;
}

void CopyJob::RunUnits(int64_t begin, int64_t end) {
  if (pid_ == 0) {
    return ForEachPart(begin, end, [](const CopyOp& op, int64_t skip, int64_t bytes) {
      kernels::Copy(op.dst + skip, op.src + skip, static_cast<size_t>(bytes), op.destination);
    });
  }
  ProcessReader reader(pid_);
  ForEachPart(begin, end, [&reader](const CopyOp& op, int64_t skip, int64_t bytes) {
    reader.Add(op.dst + skip, reinterpret_cast<uintptr_t>(op.src) + static_cast<uintptr_t>(skip),
               static_cast<size_t>(bytes));
  });
  if (!reader.Finish()) failed_.store(true, std::memory_order_relaxed);
}

template <typename Copy>
void CopyJob::ForEachPart(int64_t begin, int64_t end, Copy copy) const {
  const auto first = ends_.begin() + static_cast<std::ptrdiff_t>(first_op_);
  const auto last = ends_.begin() + static_cast<std::ptrdiff_t>(last_op_);
  auto at = static_cast<size_t>(std::upper_bound(first, last, begin) - ends_.begin());
  for (int64_t position = begin; position < end; ++at) {
    const CopyOp& op = ops_[at];
    const int64_t skip = position - (ends_[at] - op.bytes);
    const int64_t bytes = std::min(op.bytes - skip, end - position);
    copy(op, skip, bytes);
    position += bytes;
  }
}

CopyPool& CopyPool::Get() {
  // Never destroyed: its threads may outlive static destructors.
  static auto* pool = new CopyPool(UsableProcessors());
  return *pool;
}

CopyPool::CopyPool(int threads) {
  for (; threads_ < threads; ++threads_) {
    try {
      std::thread([this] { Loop(); }).detach();
    } catch (const std::system_error&) {
      break;  // the system has no more threads: make do with those there are
    }
  }
}

int64_t CopyPool::GrainBytes(int64_t step_bytes, int64_t least) {
  return std::clamp(step_bytes / (kGrainsPerThread * std::max(1, Get().threads())), least, kMaxGrainBytes);
}

void CopyPool::Run(PoolJob* job, int64_t order, std::function<void()> done) {
  if (threads_ == 0) job->RunInline();
  job->step_ = 0;
  if (threads_ == 0 || !job->BeginStep(0)) return done();
  job->done_ = std::move(done);
  job->order_ = order;
  const bool whole = job->units_ <= job->grain_;  // for one thread
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    job->references_ = 0;
    Insert(job, false);
  }
  if (whole) return wake_.notify_one();
  wake_.notify_all();
}

// Requires the lock, as UpdateFirstOrder does.
void CopyPool::Insert(PoolJob* job, bool before_equals) {
  const auto at = std::find_if(jobs_.begin(), jobs_.end(), [&](const PoolJob* other) {
    return before_equals ? other->order_ >= job->order_ : other->order_ > job->order_;
  });
  jobs_.insert(at, job);
  UpdateFirstOrder();
}

void CopyPool::UpdateFirstOrder() {
  first_order_.store(jobs_.empty() ? kNobody : jobs_.front()->order_, std::memory_order_relaxed);
}

void CopyPool::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !jobs_.empty(); });
    Work(jobs_.front(), &lock);
  }
}

// Called and left with the lock held. The last worker to leave a step whose every unit is done moves the job on:
// no worker ever waits for another.
void CopyPool::Work(PoolJob* job, std::unique_lock<std::mutex>* lock) {
  ++job->references_;
  lock->unlock();
  bool more = job->ClaimAndRun();
  while (more && !AnyBefore(*job)) more = job->ClaimAndRun();
  lock->lock();
  const auto queued = std::find(jobs_.begin(), jobs_.end(), job);
  const bool claimable = more && queued != jobs_.end();  // as far as anybody has found out
  if (!more && queued != jobs_.end()) {
    jobs_.erase(queued);
    UpdateFirstOrder();
  }
  if (--job->references_ > 0 || claimable) return;
  // Nothing is left to claim and no worker is inside, so everything is done.
  if (job->BeginStep(++job->step_)) {
    Insert(job, true);
    if (job->units_ > job->grain_) wake_.notify_all();
    return;
  }
  auto done = std::move(job->done_);
  job->done_ = nullptr;
  lock->unlock();
  done();
  lock->lock();
}

}  // namespace fastjax
