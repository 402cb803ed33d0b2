#include "gpu_cases.h"

#include <algorithm>
#include <numeric>

namespace fastjax::bench {
namespace {

using gpu_support::MoveLine;
using gpu_support::Random;

constexpr int32_t kPeers = 32;
constexpr double kExponent = 0.8;
// More runs than this say nothing new, and take long to list.
constexpr int64_t kMostRuns = 1 << 20;

std::vector<int64_t> RunsOf(const GpuCase& which, int64_t rows, Random* random) {
  if (which.updates == 0) return std::vector<int64_t>(static_cast<size_t>(rows), 1);
  std::vector<int64_t> runs;
  for (const int64_t to_peer : gpu_support::ZipfRows(kPeers, kExponent, rows, random)) {
    const std::vector<int64_t> parts = gpu_support::Split(to_peer, which.updates, random);
    runs.insert(runs.end(), parts.begin(), parts.end());
  }
  return runs;
}

// Where each run begins, in rows, if they lie one behind the other in random order.
std::vector<int64_t> Shuffled(const std::vector<int64_t>& runs, Random* random) {
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), *random);
  std::vector<int64_t> first(runs.size());
  int64_t at = 0;
  for (const size_t run : order) {
    first[run] = at;
    at += runs[run];
  }
  return first;
}

}  // namespace

std::string NameOf(const GpuCase& which) {
  std::string way = which.gathers ? "gather" : "scatter";
  if (which.sources > 0) way = "sum of " + std::to_string(which.sources) + ", " + way;
  const std::string rows = std::to_string(which.row_bytes) + " B rows, ";
  if (which.updates == 0) return way + " " + rows + "each alone";
  return way + " " + rows + std::to_string(which.updates) + " a peer";
}

std::vector<GpuCase> CasesOf(int64_t bytes) {
  constexpr double kGoal = 0.9;
  constexpr double kShortRowsGoal = 0.7;
  std::vector<GpuCase> cases;
  for (const bool gathers : {true, false}) {
    for (const int64_t row_bytes : {4096 * 2, 7168 * 2}) {  // of bfloat16
      for (const int32_t updates : {1, 8, 32}) cases.push_back({gathers, row_bytes, updates, kGoal});
    }
    cases.push_back({gathers, 4096 * 2, 0, std::nullopt});
    cases.push_back({gathers, 256, 32, kShortRowsGoal});
    for (const int32_t sources : {1, 2}) cases.push_back({gathers, 4096 * 2, 8, std::nullopt, sources});
    if (bytes / 256 <= kMostRuns) cases.push_back({gathers, 256, 0, kShortRowsGoal});
  }
  return cases;
}

MoveLine MakeLine(const GpuCase& which, int64_t bytes, std::byte* dst, const std::byte* src, Random* random) {
  const std::vector<int64_t> runs = RunsOf(which, bytes / which.row_bytes, random);
  const std::vector<int64_t> apart = Shuffled(runs, random);
  MoveLine line;
  int64_t side_by_side = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t to = which.gathers ? side_by_side : apart[i];
    const int64_t from = which.gathers ? apart[i] : side_by_side;
    line.Add(dst + to * which.row_bytes, src + from * which.row_bytes, runs[i] * which.row_bytes);
    side_by_side += runs[i];
  }
  return line;
}

}  // namespace fastjax::bench
