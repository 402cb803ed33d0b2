// Declares CopyPool: the process's threads that copy and sum rows, one for each usable processor.
#ifndef FASTJAX_RUNTIME_COPY_POOL_H_
#define FASTJAX_RUNTIME_COPY_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/copy.h"
#include "runtime/process_memory.h"

namespace fastjax {

// One copy between two ranges of memory that this process can address.
struct CopyOp {
  std::byte* dst;
  const std::byte* src;
  int64_t bytes;
  kernels::Destination destination;
};

// A job of several steps, each of so many units, which threads claim by grains. Threads do the units of one step in any
// order and at once; all of them are done before the next step starts. A job is run once, and may then be filled again.
class PoolJob {
 public:
  PoolJob() = default;
  PoolJob(const PoolJob&) = delete;
  PoolJob& operator=(const PoolJob&) = delete;

  // Returns the bytes that the job reads.
  virtual int64_t bytes() const = 0;
  // Runs everything on the calling thread.
  void RunInline();

 protected:
  ~PoolJob() = default;

  // Begins that step; they are begun in order, from 0. False if there is none.
  virtual bool BeginStep(size_t step) = 0;
  virtual void RunUnits(int64_t begin, int64_t end) = 0;

  void SetUnits(int64_t units, int64_t grain);

 private:
  friend class CopyPool;

  bool ClaimAndRun();  // one grain of the current step; false when none is left to claim

  size_t step_ = 0;  // the current one
  int64_t units_ = 0;
  int64_t grain_ = 0;
  std::atomic<int64_t> claimed_{0};
  int64_t order_ = 0;   // set before the pool has it
  int references_ = 0;  // workers inside this job; guarded by the pool's mutex
  std::function<void()> done_;
};

// Copies in steps, whose units are bytes. A job is filled by Clear, and then Add or AddSteps; once it has seen its
// largest exchange it no longer allocates.
class CopyJob final : public PoolJob {
 public:
  void Clear();
  // From now until Clear, sources are addresses in the memory of that process.
  void ReadFrom(int64_t pid) { pid_ = pid; }
  // Adds a copy to a job of one step.
  void Add(const CopyOp& op);
  // A copy of step `step`, of several steps.
  struct OfStep {
    int32_t step;
    CopyOp op;
  };
  // Adds `steps` steps, whose copies come in any order. Those of one step keep the order in which they come.
  void AddSteps(const std::vector<OfStep>& copies, int32_t steps);

  int64_t bytes() const override { return total_bytes_; }
  int64_t steps() const { return static_cast<int64_t>(step_ops_.size()); }
  // Whether some of another process's memory could not be read.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Adds all reads to `reader`, for a job that reads from another process.
  void AddTo(ProcessReader* reader) const;

 private:
  bool BeginStep(size_t step) override;
  void RunUnits(int64_t begin, int64_t end) override;

  template <typename Copy>
  void ForEachPart(int64_t begin, int64_t end, Copy copy) const;
  void Grow(size_t count);  // room for so many copies

  // While several steps are added: where the next copy of one of them goes, and how many bytes those before it have.
  struct Next {
    size_t op = 0;
    int64_t bytes = 0;
  };

  std::vector<Next> next_;
  size_t count_ = 0;  // of copies; the vectors keep what they have grown to, so that nothing is cleared twice
  std::vector<CopyOp> ops_;
  std::vector<int64_t> ends_;     // ends_[i]: bytes of the step up to and including ops_[i]
  std::vector<size_t> step_ops_;  // one past the last op of each step
  int64_t pid_ = 0;               // 0: this process
  int64_t total_bytes_ = 0;

  // The step that is being run.
  size_t first_op_ = 0;
  size_t last_op_ = 0;
  std::atomic<bool> failed_{false};
};

class CopyPool {
 public:
  static CopyPool& Get();

  int threads() const { return threads_; }

  // Runs `job` on the pool and then calls `done` on one of its threads. The job must live until then. Jobs of a lower
  // `order` go first, jobs of one order in the order of calls. A thread of the pool that works for a later job goes
  // over to an earlier one after its present grain.
  void Run(PoolJob* job, int64_t order, std::function<void()> done);

  // The bytes of a grain of a step of so many: enough to even out unequal threads, but at least `least`, below which
  // claiming one takes too long.
  static int64_t GrainBytes(int64_t step_bytes, int64_t least = int64_t{64} << 10);

 private:
  static constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();

  explicit CopyPool(int threads);
  void Loop();
  void Work(PoolJob* job, std::unique_lock<std::mutex>* lock);
  void Insert(PoolJob* job, bool before_equals);
  void UpdateFirstOrder();
  bool AnyBefore(const PoolJob& job) const { return first_order_.load(std::memory_order_relaxed) < job.order_; }

  int threads_ = 0;  // set once, by the constructor
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<PoolJob*> jobs_;                  // jobs with grains left to claim, by order
  std::atomic<int64_t> first_order_{kNobody};  // that of the first of them
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_COPY_POOL_H_
