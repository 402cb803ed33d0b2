// One allocation of the emulated GPU's: buffers with guards between them are cut from it.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_GUARDED_MEMORY_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_GUARDED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastjax::test {

class GuardedMemory {
 public:
  explicit GuardedMemory(int32_t device);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* Take(size_t bytes);
  // Takes all buffers back.
  void Clear();
  bool GuardsAreWhole() const;
  std::vector<std::byte> Content() const;

 private:
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
  std::vector<size_t> guards_;  // where they begin
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_GUARDED_MEMORY_H_
