// Declares StagingPool, which owns the host memory that rows rest in between the hops of a staged plan.
#ifndef FASTJAX_RUNTIME_STAGING_POOL_H_
#define FASTJAX_RUNTIME_STAGING_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax {

// Buffers are kept and shared by all call sites, so a program of many layers holds as many as it has exchanges in
// flight, not as many as it has exchanges; and memory that was used before costs no page faults.
class StagingPool {
 public:
  class Buffer {
   public:
    Buffer() = default;
    std::byte* data() const { return data_.get(); }
    int64_t bytes() const { return bytes_; }

   private:
    friend class StagingPool;
    std::unique_ptr<std::byte[]> data_;
    int64_t bytes_ = 0;
  };

  static StagingPool& Get() { return ProcessState<StagingPool>(); }

  // Returns a buffer of at least `bytes`; an empty one if there is no memory.
  Buffer Take(int64_t bytes);
  void Return(Buffer buffer);

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_STAGING_POOL_H_
