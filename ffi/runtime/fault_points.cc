#include "runtime/fault_points.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>

namespace fastjax {
namespace {

// No process can block or handle this signal.
void StopThisProcess() { raise(SIGSTOP); }

}  // namespace

FaultPoints::FaultPoints(std::string_view wanted, void (*stop)()) : stop_(stop) {
  while (!wanted.empty()) {
    const std::string_view one = wanted.substr(0, wanted.find(','));
    wanted.remove_prefix(std::min(wanted.size(), one.size() + 1));
    const size_t at = one.find('@');
    if (at == std::string_view::npos) continue;
    int64_t launch = -1;
    std::from_chars(one.data() + at + 1, one.data() + one.size(), launch);
    const bool any = one.substr(at + 1) == "*";
    if (any || launch >= 0) points_.push_back(std::make_unique<Point>(one.substr(0, at), any ? kAny : launch));
  }
}

FaultPoints& FaultPoints::Get() {
  static auto* const points = [] {
    const char* const wanted = std::getenv("FASTJAX_FAULT");  // NOLINT(concurrency-mt-unsafe)
    return new FaultPoints(wanted == nullptr ? "" : wanted, &StopThisProcess);
  }();
  return *points;
}

void FaultPoints::ReachStep(int64_t launch, planner::Phase phase, int32_t stage) {
  switch (phase) {
    case planner::Phase::kBalance:
      return Reach(launch, "balance");
    case planner::Phase::kScaleOut:
      return Reach(launch, "stage " + std::to_string(stage));
    case planner::Phase::kRedistribute:
      return Reach(launch, "redistribution");
    case planner::Phase::kLocal:
      return;
  }
}

void FaultPoints::Reach(int64_t launch, std::string_view place) {
  for (const auto& point : points_) {
    const bool here = (point->launch == launch || point->launch == kAny) && point->place == place;
    if (here && !point->reached.exchange(true)) stop_();
  }
}

}  // namespace fastjax
