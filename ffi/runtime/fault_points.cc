#include "runtime/fault_points.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>

namespace fastjax {
namespace {

// Nobody can block or handle it.
void StopThisProcess() { raise(SIGSTOP); }

}  // namespace

FaultPoints::FaultPoints(std::string_view wanted, void (*stop)()) : stop_(stop) {
  while (!wanted.empty()) {
    const std::string_view one = wanted.substr(0, wanted.find(','));
    wanted.remove_prefix(std::min(wanted.size(), one.size() + 1));
    const size_t at = one.find('@');
    int64_t exchange = -1;
    if (at != std::string_view::npos) std::from_chars(one.data() + at + 1, one.data() + one.size(), exchange);
    if (exchange >= 0) points_.push_back(std::make_unique<Point>(one.substr(0, at), exchange));
  }
}

FaultPoints& FaultPoints::Get() {
  static auto* const points = [] {
    const char* const wanted = std::getenv("FASTJAX_FAULT");  // NOLINT(concurrency-mt-unsafe)
    return new FaultPoints(wanted == nullptr ? "" : wanted, &StopThisProcess);
  }();
  return *points;
}

void FaultPoints::Begin() {
  exchanges_.fetch_add(1);
  At("meet");
}

void FaultPoints::AtStepOf(planner::Phase phase, int32_t stage) {
  switch (phase) {
    case planner::Phase::kBalance:
      return At("balance");
    case planner::Phase::kScaleOut:
      return At("stage " + std::to_string(stage));
    case planner::Phase::kRedistribute:
      return At("redistribution");
    case planner::Phase::kLocal:
      return;
  }
}

void FaultPoints::At(std::string_view place) {
  const int64_t exchange = exchanges_.load() - 1;
  for (const auto& point : points_) {
    if (point->exchange == exchange && point->place == place && !point->reached.exchange(true)) stop_();
  }
}

}  // namespace fastjax
