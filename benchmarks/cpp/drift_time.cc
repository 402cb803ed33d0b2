// What a warm start saves: the same drifting traffic, planned anew at every step, and from the plan of the step before.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "length.h"
#include "planner/matchings.h"
#include "planner/planner.h"

namespace fastjax::bench {
namespace {

using planner::MatchingList;
using planner::Planner;
using planner::Topology;

constexpr int kSteps = 48;
constexpr double kMeanRows = 4096;

// Log-popularity of experts, one a device, goes its way from step to step (AR(1)); every sender has tastes of its own,
// which stay.
class Drift {
 public:
  Drift(int32_t devices, double rho, uint64_t seed)
      : devices_(devices),
        rho_(rho),
        random_(seed),
        popularity_(devices),
        taste_(static_cast<size_t>(devices) * devices) {
    for (double& value : popularity_) value = 0.5 * normal_(random_);
    for (double& value : taste_) value = 0.7 * normal_(random_);
  }

  std::vector<int64_t> Next() {
    for (double& value : popularity_) value = rho_ * value + std::sqrt(1 - rho_ * rho_) * 0.5 * normal_(random_);
    const auto n = static_cast<size_t>(devices_);
    std::vector<int64_t> traffic(n * n);
    std::vector<double> shares(n);
    for (size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += shares[j] = std::exp(popularity_[j] + taste_[i * n + j]);
      for (size_t j = 0; j < n; ++j) {
        traffic[i * n + j] = std::llround(shares[j] / sum * kMeanRows * static_cast<double>(n));
      }
    }
    return traffic;
  }

 private:
  int32_t devices_;
  double rho_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> popularity_;
  std::vector<double> taste_;
};

struct Series {
  std::vector<double> microseconds;
  double matchings = 0;
  double length = 0;

  double Median() {
    std::sort(microseconds.begin(), microseconds.end());
    return microseconds[microseconds.size() / 2];
  }
};

template <typename Plan>
void Measure(const Settings& settings, const std::vector<int64_t>& traffic, Planner* planner, Series* series,
             Plan plan) {
  const auto start = std::chrono::steady_clock::now();
  plan();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  series->microseconds.push_back(time.count());
  series->matchings += static_cast<double>(planner->num_matchings()) / kSteps;
  series->length += LengthByBound(settings, traffic, planner).value_or(0) / kSteps;
}

void RunDrift(const Settings& settings, int32_t servers, double rho) {
  Topology topology;
  topology.servers = servers;
  topology.devices_per_server = 8;
  Planner anew(topology, planner::Scheduler::kFast, 4096);
  Planner warm(topology, planner::Scheduler::kFast, 4096);
  Drift drift(topology.devices(), rho, 7);
  const std::vector<int64_t> first = drift.Next();
  warm.Plan(first.data());
  MatchingList before = *warm.matchings();
  Series cold;
  Series begun;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int64_t> traffic = drift.Next();
    Measure(settings, traffic, &anew, &cold, [&] { anew.Plan(traffic.data()); });
    Measure(settings, traffic, &warm, &begun, [&] { warm.PlanWith(traffic.data(), before, planner::Seeding::kBegin); });
    before = *warm.matchings();
  }
  const double cold_median = cold.Median();
  const double warm_median = begun.Median();
  std::printf("| %d | %.2f | %.1f | %.1f | %.2f | %.1f | %.1f | %.4f | %.4f |\n", topology.devices(), rho, cold_median,
              warm_median, cold_median / warm_median, cold.matchings, begun.matchings, cold.length, begun.length);
}

}  // namespace
}  // namespace fastjax::bench

int main() {
  const fastjax::bench::Settings settings = {fastjax::planner::Scheduler::kFast, 4096};
  std::printf(
      "| devices | rho | anew µs | from the last µs | anew ÷ last | matchings anew | from the last | length ÷ bound "
      "anew | from the last |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const double rho : {0.999, 0.99, 0.9}) {
    for (const int32_t servers : {4, 8, 12, 40, 128}) fastjax::bench::RunDrift(settings, servers, rho);
  }
  return 0;
}
