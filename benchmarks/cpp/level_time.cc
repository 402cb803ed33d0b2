// Microseconds to deal the rows of experts to devices, with another matrix of counts every time: the best, and the
// median.
//
//   level_time [RUNS]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "planner/levelling.h"
#include "spread.h"

namespace {

using fastjax::planner::Leveller;
using fastjax::planner::LevellingShape;
using Counts = std::vector<int32_t>;

constexpr int32_t kMatrices = 16;
constexpr double kMeanRows = 4096;  // of a device

struct Law {
  const char* name;
  double zipf;
  bool one_device;  // whether all tokens choose experts of the first
};

// Popularity by Zipf's law, in an order drawn for each matrix; what a sender has for an expert is a rounded draw.
Counts Draw(const LevellingShape& shape, const Law& law, std::mt19937_64* random) {
  const int32_t chosen = law.one_device ? shape.here : shape.experts();
  std::vector<double> popularity(chosen);
  double sum = 0;
  for (int32_t e = 0; e < chosen; ++e) sum += popularity[e] = std::pow(e + 1, -law.zipf);
  std::shuffle(popularity.begin(), popularity.end(), *random);
  Counts counts;
  for (int32_t sender = 0; sender < shape.ranks(); ++sender) {
    for (int32_t e = 0; e < shape.experts(); ++e) {
      const double mean = e < chosen ? kMeanRows * popularity[e] / sum : 0;
      counts.push_back(mean > 0 ? std::poisson_distribution<int32_t>(mean)(*random) : 0);
    }
  }
  return counts;
}

void Time(const LevellingShape& shape, const Law& law, int32_t runs) {
  std::mt19937_64 random(1);
  std::vector<Counts> matrices;
  for (int32_t i = 0; i < kMatrices; ++i) matrices.push_back(Draw(shape, law, &random));
  std::vector<int32_t> slots(static_cast<size_t>(shape.ranks()) * shape.copies);
  std::vector<int32_t> sizes(static_cast<size_t>(shape.ranks()) * shape.ranks() * shape.groups());
  std::vector<int32_t> starts(sizes.size());
  Leveller leveller(shape);
  std::vector<double> times;
  for (int32_t i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    leveller.Level(matrices[i % kMatrices].data(), {slots.data(), sizes.data(), starts.data()});
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    times.push_back(taken.count());
  }
  const fastjax::bench::Spread spread = fastjax::bench::MakeSpread(times);
  std::printf("%2d x %2d devices, %3d experts, %-10s %7.1f %7.1f\n", shape.servers, shape.devices, shape.experts(),
              law.name, spread.min, spread.median);
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t runs = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 2000;
  for (const LevellingShape& shape : {LevellingShape{4, 8, 8, 4, 0}, LevellingShape{1, 32, 8, 4, 0},
                                      LevellingShape{8, 8, 6, 4, 0}, LevellingShape{1, 64, 6, 4, 0}}) {
    for (const Law& law : {Law{"even", 0, false}, Law{"zipf 0.8", 0.8, false}, Law{"zipf 1.2", 1.2, false},
                           Law{"one device", 0, true}}) {
      Time(shape, law, runs);
    }
  }
  return 0;
}
