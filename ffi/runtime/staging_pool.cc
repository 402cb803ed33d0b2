#include "runtime/staging_pool.h"

#include <iterator>
#include <new>
#include <utility>

namespace fastjax {
namespace {

// The most buffers that are kept: more would only hold memory of exchanges that no longer overlap.
constexpr size_t kBuffersKept = 8;

}  // namespace

StagingPool::Buffer StagingPool::Take(int64_t bytes) {
  Buffer best;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto chosen = free_.end();
    for (auto each = free_.begin(); each != free_.end(); ++each) {
      const bool better = chosen == free_.end() || each->bytes_ < chosen->bytes_;
      if (each->bytes_ >= bytes && better) chosen = each;
    }
    // If no free buffer is large enough, the new one replaces one of them.
    if (chosen == free_.end() && !free_.empty()) chosen = std::prev(free_.end());
    if (chosen != free_.end()) {
      best = std::move(*chosen);
      free_.erase(chosen);
    }
  }
  if (best.bytes_ >= bytes) return best;
  best.data_.reset();
  best.data_.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  best.bytes_ = best.data_ == nullptr ? 0 : bytes;
  return best;
}

void StagingPool::Return(Buffer buffer) {
  if (buffer.bytes_ == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.size() < kBuffersKept) free_.push_back(std::move(buffer));
}

}  // namespace fastjax
