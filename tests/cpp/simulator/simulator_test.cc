// Pools of many flows. Whole plans, message by message, are held against a slow simulator in tests/simulation.
#include "simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "simulator/program.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using simulator::Program;
using simulator::Simulator;

constexpr double kClose = 1e-9;

// A link that more than a thousand tasks share, the last hundred of which begin later. With a resolution, fewer
// moments are looked at; tasks end about when they do without, and all of them no earlier than the link allows.
TEST(LargePools) {
  std::mt19937 random(4);
  Program program;
  program.capacities = {1000};
  program.tasks.resize(1600);
  double bytes = 0;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    program.tasks[i].links[0] = 0;
    program.tasks[i].bytes = std::uniform_real_distribution<double>(900, 1100)(random);
    program.tasks[i].start_up = i < 1500 ? 0 : 100 + 0.1 * static_cast<double>(i - 1500);
    bytes += program.tasks[i].bytes;
  }
  const double busy = bytes / program.capacities[0];
  const auto run = [](Simulator* simulator) {
    int64_t events = 1;
    while (!simulator->Advance(1)) ++events;
    return events;
  };
  constexpr double kResolution = 0.01;
  Simulator exact(program, 0), coarse(program, kResolution);
  const int64_t exact_events = run(&exact);
  CHECK_LT(run(&coarse), exact_events - 500);  // the ends for as long as there are 1,024 tasks
  const double last = *std::max_element(exact.end().begin(), exact.end().end());
  CHECK_LE(std::abs(last - busy), kClose * busy);
  CHECK_GE(*std::max_element(coarse.end().begin(), coarse.end().end()), busy * (1 - kClose));
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    CHECK(coarse.is_done(static_cast<int32_t>(i)));
    CHECK_EQ(coarse.start()[i], exact.start()[i]);
    CHECK_LE(std::abs(coarse.end()[i] - exact.end()[i]), 2 * kResolution * busy);
  }
}

}  // namespace
}  // namespace fastjax::test
