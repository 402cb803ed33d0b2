// Results as lines of text, with medians and means, and as JSON.
#ifndef FASTJAX_BENCHMARKS_CPP_REPORT_H_
#define FASTJAX_BENCHMARKS_CPP_REPORT_H_

#include <string>
#include <vector>

#include "timing.h"

namespace fastjax::bench {

void Print(const Result& result);

// Returns false where the file cannot be written.
[[nodiscard]] bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
                             const std::vector<Result>& results);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_REPORT_H_
