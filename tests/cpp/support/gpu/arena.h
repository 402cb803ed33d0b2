// One allocation of the emulated GPU's, which buffers are cut from.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_ARENA_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastjax::test {

// Buffers lie between guards.
class Arena {
 public:
  explicit Arena(int32_t device);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

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

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_ARENA_H_
