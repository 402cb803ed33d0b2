#include "runtime/process_memory.h"

#include <algorithm>
#include <utility>

namespace fastjax {

void ProcessReader::Add(void* dst, uint64_t src, size_t bytes) {
  // Addresses of the other process. They are never dereferenced, only handed to the system.
  here_[count_] = {dst, bytes};
  there_[count_] = {reinterpret_cast<void*>(static_cast<uintptr_t>(src)), bytes};  // NOLINT(performance-no-int-to-ptr)
  bytes_ += bytes;
  if (++count_ == kBatch) Read();
}

bool ProcessReader::Finish() {
  if (count_ > 0) Read();
  return good_;
}

void ProcessReader::Read() {
  const size_t count = std::exchange(count_, 0);
  const size_t bytes = std::exchange(bytes_, 0);
  if (!good_) return;
  const ssize_t got = process_vm_readv(pid_, here_.data(), count, there_.data(), count, 0);
  if (got == static_cast<ssize_t>(bytes)) return;
  // The system may stop a batch where an iov ends: then the rest is read one iov at a time.
  size_t done = got > 0 ? static_cast<size_t>(got) : 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t skip = std::min(done, here_[i].iov_len);
    done -= skip;
    iovec here{static_cast<std::byte*>(here_[i].iov_base) + skip, here_[i].iov_len - skip};
    iovec there{static_cast<std::byte*>(there_[i].iov_base) + skip, here.iov_len};
    while (good_ && here.iov_len > 0) {
      const ssize_t part = process_vm_readv(pid_, &here, 1, &there, 1, 0);
      good_ = part > 0;
      if (!good_) return;
      here = {static_cast<std::byte*>(here.iov_base) + part, here.iov_len - static_cast<size_t>(part)};
      there = {static_cast<std::byte*>(there.iov_base) + part, here.iov_len};
    }
  }
}

}  // namespace fastjax
