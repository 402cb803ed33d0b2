// What a warm start saves: the same drifting traffic, planned anew at every step, and from the plan of the step before.
//
//   drift_time [--json FILE]
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "length.h"
#include "planner/matchings.h"
#include "planner/planner.h"
#include "spread.h"

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

// Of one way to plan; counts are means over the steps.
struct Series {
  std::vector<double> microseconds;
  double matchings = 0;
  double length = 0;
};

struct Comparison {
  int32_t devices;
  double rho;
  Series anew;
  Series begun;  // from the plan of the step before
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

Comparison Compare(const Settings& settings, int32_t servers, double rho) {
  Topology topology;
  topology.servers = servers;
  topology.devices_per_server = kDevicesPerServer;
  Planner anew(topology, settings.scheduler, settings.row_bytes);
  Planner warm(topology, settings.scheduler, settings.row_bytes);
  Drift drift(topology.devices(), rho, 7);
  const std::vector<int64_t> first = drift.Next();
  warm.Plan(first.data());
  MatchingList before = *warm.matchings();
  Comparison result = {topology.devices(), rho, {}, {}};
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int64_t> traffic = drift.Next();
    Measure(settings, traffic, &anew, &result.anew, [&] { anew.Plan(traffic.data()); });
    Measure(settings, traffic, &warm, &result.begun,
            [&] { warm.PlanWith(traffic.data(), before, planner::Seeding::kBegin); });
    before = *warm.matchings();
  }
  return result;
}

void PrintHeads() {
  std::printf("anew, and begun with the plan of the step before: until stages are known; rho: what stays from step\n");
  std::printf("to step of the popularity of experts; %d steps\n\n", kSteps);
  std::printf("%7s %6s %24s %24s %8s %19s %19s\n", "", "", "anew us", "begun us", "anew", "matchings",
              "length / bound");
  std::printf("%7s %6s %12s %11s %12s %11s %8s %9s %9s %9s %9s\n", "devices", "rho", "p25", "median", "p25", "median",
              "/ begun", "anew", "begun", "anew", "begun");
}

void Print(const Comparison& found) {
  const Spread anew = MakeSpread(found.anew.microseconds);
  const Spread begun = MakeSpread(found.begun.microseconds);
  std::printf("%7d %6.3f %12.1f %11.1f %12.1f %11.1f %8.2f %9.1f %9.1f %9.4f %9.4f\n", found.devices, found.rho,
              anew.p25, anew.median, begun.p25, begun.median, anew.median / begun.median, found.anew.matchings,
              found.begun.matchings, found.anew.length, found.begun.length);
  std::fflush(stdout);
}

std::string ToJson(const Series& series) {
  return "{\"plan_us\": " + Json(MakeSpread(series.microseconds)) + ", \"matchings\": " + Json(series.matchings) +
         ", \"length_by_bound\": " + Json(series.length) + "}";
}

bool WriteJson(const std::string& path, const Settings& settings, double load_at_start,
               const std::vector<Comparison>& results) {
  std::ofstream file(path);
  file << "{\n"
       << JsonHead("fastjax-drift-time-1", load_at_start) << ",\n \"row_bytes\": " << settings.row_bytes
       << ", \"devices_per_server\": " << kDevicesPerServer << ", \"steps\": " << kSteps << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) {
    const Comparison& found = results[i];
    file << (i > 0 ? "," : "") << "\n  {\"devices\": " << found.devices << ", \"rho\": " << Json(found.rho)
         << ",\n   \"anew\": " << ToJson(found.anew) << ",\n   \"begun\": " << ToJson(found.begun) << "}";
  }
  file << "\n ]\n}\n";
  return file.flush().good();
}

int Main(const std::string& json) {
  const Settings settings = {planner::Scheduler::kFast, 4096};
  const double load = LoadAverage();
  PrintHeads();
  std::vector<Comparison> results;
  for (const double rho : {0.999, 0.99, 0.9}) {
    for (const int32_t servers : {4, 8, 12, 40, 128}) {
      results.push_back(Compare(settings, servers, rho));
      Print(results.back());
    }
  }
  if (!json.empty() && !WriteJson(json, settings, load, results)) {
    std::fprintf(stderr, "drift_time: cannot write %s\n", json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) {
  const bool named = argc == 3 && std::string_view(argv[1]) == "--json" && *argv[2] != '\0';
  if (argc != 1 && !named) {
    std::fprintf(stderr, "usage: drift_time [--json FILE]\n");
    return 2;
  }
  return fastjax::bench::Main(named ? argv[2] : "");
}
