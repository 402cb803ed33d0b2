// Which configs NCCL takes, by what 2.18 and 2.28 check.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_CONFIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_CONFIG_H_

#include <climits>
#include <cstring>

#include "backends/gpu/nccl/api.h"

namespace fastjax::test {

inline bool IsUndefinedOr(int value, int least, int most) {
  return value == INT_MIN || (least <= value && value <= most);
}

inline bool IsValid(const gpu::nccl::Config& config) {
  return config.magic == 0xcafebeef && IsUndefinedOr(config.blocking, 0, 1) &&
         IsUndefinedOr(config.cga_cluster_size, 0, INT_MAX) && IsUndefinedOr(config.min_ctas, 1, INT_MAX) &&
         IsUndefinedOr(config.max_ctas, 1, INT_MAX) && config.min_ctas <= config.max_ctas &&
         IsUndefinedOr(config.split_share, 0, 1);
}

// What NCCL takes and we must not give; null: nothing.
inline const char* MistakeIn(const gpu::nccl::Config& config) {
  if (config.size < 48 || config.version < 21800) return "a bad config";
  int traffic_class = 0;  // whatever is there
  std::memcpy(&traffic_class, reinterpret_cast<const char*>(&config) + 44, sizeof(traffic_class));
  return traffic_class == INT_MIN ? nullptr : "a config with a traffic class: NCCL 2.26 would use it";
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_CONFIG_H_
