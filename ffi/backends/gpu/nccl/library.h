// Loads NCCL or RCCL at run time: fastjax neither needs it to be installed nor links against it.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_LIBRARY_H_
#define FASTJAX_BACKENDS_GPU_NCCL_LIBRARY_H_

#include <string>
#include <vector>

#include "backends/gpu/nccl/api.h"

namespace fastjax::gpu::nccl {

// The oldest release that JAX's CUDA plugins ask for, and the first of which RCCL has a release too (with ROCm 6) that
// bounds waits as we do: by communicators that do not block.
constexpr int kOldestMajor = 2;
constexpr int kOldestMinor = 18;

struct Library {
  std::string path;     // as it was found
  std::string version;  // "NCCL 2.27.7"
  std::string name;     // "NCCL", "RCCL"
// NOLINTNEXTLINE(bugprone-macro-parentheses): types and names
#define FASTJAX_NCCL_MEMBER(type, function, arguments) type(*function) arguments = nullptr;
  FASTJAX_NCCL_FUNCTIONS(FASTJAX_NCCL_MEMBER)
#undef FASTJAX_NCCL_MEMBER
};

// The first of `names` (names or paths) that this process has loaded already, such as by JAX, so that there are not two
// of them; if there is none, the first that can be loaded. It stays until the process ends. Null, with the reason, if
// none will do. Thread-safe.
const Library* Load(const std::vector<std::string>& names, std::string* wrong);

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_LIBRARY_H_
