// Declares CopyPool: the process's threads that copy rows, one for each usable processor.
#ifndef FASTJAX_RUNTIME_COPY_POOL_H_
#define FASTJAX_RUNTIME_COPY_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/copy_op.h"
#include "runtime/process_memory.h"

namespace fastjax {

// Copies in steps: those of one step may run in any order and at once, and all of a step is done before the next
// one starts. A job is filled (Clear, Add, EndStep), run once, and may then be filled again; once it has seen its
// largest exchange it no longer allocates.
class CopyJob {
 public:
  void Clear();
  // The sources are in the memory of that process, by their addresses there. Until Clear.
  void ReadFrom(int64_t pid) { pid_ = pid; }
  void Add(const CopyOp& op);
  void EndStep();
  // A copy of the `step`th of several steps.
  struct OfStep {
    int32_t step;
    CopyOp op;
  };
  // Adds `steps` steps, whose copies come in any order. Those of one step keep the order in which they come.
  void AddSteps(const std::vector<OfStep>& copies, int32_t steps);

  int64_t bytes() const { return total_bytes_; }
  int64_t steps() const { return static_cast<int64_t>(step_ops_.size()); }
  // Whether some of another process's memory could not be read.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Runs everything on the calling thread.
  void RunInline();
  // For a job that reads from another process: adds all of its reads to `reader`.
  void AddTo(ProcessReader* reader) const;

 private:
  friend class CopyPool;

  bool ClaimAndCopy();  // copies one piece of the current step; false when none is left to claim
  template <typename Copy>
  void ForEachPart(int64_t begin, int64_t end, Copy copy) const;
  void CopyRange(int64_t begin, int64_t end);
  bool NextStep();  // false after the last one
  void BeginStep(size_t step);
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
  int64_t step_bytes_so_far_ = 0;

  // The step being run.
  size_t step_ = 0;
  size_t first_op_ = 0;
  size_t last_op_ = 0;
  int64_t step_bytes_ = 0;
  int64_t piece_bytes_ = 0;
  std::atomic<int64_t> claimed_{0};
  std::atomic<bool> failed_{false};
  int references_ = 0;  // workers inside this job; guarded by the pool's mutex
  std::function<void()> done_;
};

class CopyPool {
 public:
  static CopyPool& Get();

  int threads() const { return threads_; }

  // Runs `job` on the pool and then calls `done` on one of its threads. The job must live until then.
  void Run(CopyJob* job, std::function<void()> done);

 private:
  explicit CopyPool(int threads);
  void Loop();
  void Work(CopyJob* job, std::unique_lock<std::mutex>* lock);

  int threads_ = 0;  // set once, by the constructor
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<CopyJob*> jobs_;  // jobs with pieces left to claim
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_COPY_POOL_H_
