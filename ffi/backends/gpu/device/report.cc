#include "backends/gpu/device/report.h"

#include <algorithm>

namespace fastjax::gpu {
namespace {

constexpr size_t kMostNames = 8;

}  // namespace

std::string NamesOf(const Report& report, std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string names;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNames); ++i) {
    names += (names.empty() ? "" : ", ") + report.NameOf(ranks[i]);
  }
  if (ranks.size() > kMostNames) names += " and " + std::to_string(ranks.size() - kMostNames) + " more";
  return names;
}

std::string LimitOf(const Report& report) {
  const int64_t limit = report.site().timeout_ms;
  return std::to_string(limit / 1000) + "." + std::to_string(limit % 1000 / 100) + " s";
}

}  // namespace fastjax::gpu
