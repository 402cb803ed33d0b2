// Declares ProcessReader, which reads the memory of other processes of this host where the system allows it.
#ifndef FASTJAX_RUNTIME_PROCESS_MEMORY_H_
#define FASTJAX_RUNTIME_PROCESS_MEMORY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastjax {

// Copies in batches, with one system call for each.
class ProcessReader {
 public:
  explicit ProcessReader(int64_t pid) : pid_(static_cast<pid_t>(pid)) {}

  // Adds a copy from address `src` of the other process to `dst`.
  void Add(void* dst, uint64_t src, size_t bytes);
  // Does what has been added. Returns whether all bytes have been read.
  bool Finish();

 private:
  static constexpr size_t kBatch = 64;

  void Read();

  const pid_t pid_;
  bool good_ = true;
  size_t count_ = 0;
  size_t bytes_ = 0;
  std::array<iovec, kBatch> here_{}, there_{};
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_PROCESS_MEMORY_H_
