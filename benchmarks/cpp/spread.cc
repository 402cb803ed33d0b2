#include "spread.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace fastjax::bench {

Spread MakeSpread(std::vector<double> microseconds) {
  if (microseconds.empty()) std::abort();
  std::sort(microseconds.begin(), microseconds.end());
  const size_t last = microseconds.size() - 1;
  const auto at = [&](size_t quarters) { return microseconds[last * quarters / 4]; };
  return {static_cast<int64_t>(microseconds.size()), at(0), at(1), at(2), at(3), at(4)};
}

}  // namespace fastjax::bench
