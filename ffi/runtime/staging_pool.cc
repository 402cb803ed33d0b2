#include "runtime/staging_pool.h"

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
    size_t chosen = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes_ < bytes) continue;
      if (chosen == free_.size() || free_[i].bytes_ < free_[chosen].bytes_) chosen = i;
    }
    if (chosen < free_.size()) {
      std::swap(best, free_[chosen]);
    } else if (!free_.empty()) {
      // No free buffer is large enough, so the new one replaces one of them.
      std::swap(best, free_.back());
      chosen = free_.size() - 1;
    }
    if (chosen < free_.size()) free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(chosen));
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
