// Results as lines of text and as JSON.
#ifndef FASTJAX_BENCHMARKS_CPP_REPORT_H_
#define FASTJAX_BENCHMARKS_CPP_REPORT_H_

#include <string>
#include <vector>

#include "contest.h"

namespace fastjax::bench {

void PrintHeader(const Settings& settings);
void PrintPlanner(const Result& result);
void PrintTextbooks(const std::vector<Result>& results);

// Returns false where the file cannot be written.
[[nodiscard]] bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
                             const std::vector<Result>& results);

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_REPORT_H_
