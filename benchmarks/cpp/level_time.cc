// Microseconds to choose devices for the rows of experts, and to deal rows to them, with another matrix of counts every
// time: the best, and the median, of each.
//
//   level_time [RUNS]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "json.h"
#include "planner/dealing.h"
#include "planner/levelling.h"

namespace {

using fastjax::planner::Dealer;
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

Counts RowsOf(const LevellingShape& shape, const Counts& counts) {
  Counts rows(shape.experts());
  for (size_t i = 0; i < counts.size(); ++i) rows[i % rows.size()] += counts[i];
  return rows;
}

template <typename Run>
double Microseconds(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void Time(const LevellingShape& shape, const Law& law, int32_t runs) {
  std::mt19937_64 random(shape.ranks());
  std::vector<std::pair<Counts, Counts>> matrices;
  for (int32_t i = 0; i < kMatrices; ++i) {
    Counts counts = Draw(shape, law, &random);
    Counts rows = RowsOf(shape, counts);
    matrices.emplace_back(std::move(counts), std::move(rows));
  }
  const auto ranks = static_cast<size_t>(shape.ranks());
  Counts slots(ranks * shape.copies);
  Counts levelled(ranks * shape.groups());
  Counts sizes(ranks * levelled.size());
  Counts starts(sizes.size());
  Leveller leveller(shape, 0);
  Dealer dealer(shape);
  std::vector<double> levelling;
  std::vector<double> dealing;
  for (int32_t i = 0; i < runs; ++i) {
    const auto& [counts, rows] = matrices[i % kMatrices];
    const int32_t* all = rows.data();
    const int32_t* by_sender = counts.data();
    levelling.push_back(Microseconds([&] { leveller.Level(all, {slots.data(), levelled.data()}); }));
    dealing.push_back(
        Microseconds([&] { dealer.Deal(by_sender, slots.data(), levelled.data(), {sizes.data(), starts.data()}); }));
  }
  const fastjax::bench::Spread level = fastjax::bench::MakeSpread(levelling);
  const fastjax::bench::Spread deal = fastjax::bench::MakeSpread(dealing);
  std::printf("%2d x %2d devices, %3d experts, %-10s level %7.1f %7.1f deal %7.1f %7.1f\n", shape.servers,
              shape.devices, shape.experts(), law.name, level.min, level.median, deal.min, deal.median);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t asked = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 2000;
  const auto runs = static_cast<int32_t>(std::clamp<int64_t>(asked, 1, 1000000));
  for (const LevellingShape& shape : {LevellingShape{4, 8, 8, 4}, LevellingShape{1, 32, 8, 4},
                                      LevellingShape{8, 8, 6, 4}, LevellingShape{1, 64, 6, 4}}) {
    for (const Law& law : {Law{"even", 0, false}, Law{"zipf 0.8", 0.8, false}, Law{"zipf 1.2", 1.2, false},
                           Law{"one device", 0, true}}) {
      Time(shape, law, runs);
    }
  }
  return 0;
}
