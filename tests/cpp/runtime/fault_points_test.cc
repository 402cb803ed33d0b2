// Fault points are reached where and when they are said to be, once, and never without being asked for.
#include "runtime/fault_points.h"

#include <cstdint>
#include <string>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::Phase;

int64_t stops = 0;
void Stop() { ++stops; }

// What one launch passes.
void Exchange(FaultPoints* points, int64_t launch) {
  points->At(launch, "meet");
  points->At(launch, "met");
  for (int32_t stage = 1; stage <= 2; ++stage) {
    for (const Phase phase : {Phase::kLocal, Phase::kBalance, Phase::kScaleOut, Phase::kRedistribute}) {
      points->AtStep(launch, phase, stage);
      points->AtStep(launch, phase, stage);
    }
  }
  points->At(launch, "end");
}

// Stops in each of three exchanges.
void CheckStops(const char* wanted, int64_t first, int64_t second, int64_t third) {
  FaultPoints points(wanted, &Stop);
  int64_t launch = 0;
  for (const int64_t expected : {first, second, third}) {
    stops = 0;
    Exchange(&points, launch++);
    CHECK_EQ(stops, expected);
  }
}

TEST(Stops) {
  CheckStops("", 0, 0, 0);
  for (const char* place : {"meet", "met", "balance", "stage 1", "stage 2", "redistribution", "end"}) {
    const std::string name(place);
    CheckStops((name + "@0").c_str(), 1, 0, 0);
    CheckStops((name + "@2").c_str(), 0, 0, 1);
    CheckStops((name + "@*").c_str(), 1, 0, 0);
  }
  CheckStops("met@0,stage 2@0,end@2", 2, 0, 1);
}

TEST(WhatMeansNothing) {
  for (const char* wanted :
       {"met", "met@", "@0", "met@x", "stage 3@0", "stage@0", "local@0", ",", "MET@0", "met@-1", "*@*"}) {
    CheckStops(wanted, 0, 0, 0);
  }
}

// Each stops at its own places, whichever began last.
TEST(LaunchesInFlightAtOnce) {
  FaultPoints points("stage 1@0", &Stop);
  stops = 0;
  for (const int64_t launch : {0, 1}) points.At(launch, "met");
  points.AtStep(1, Phase::kScaleOut, 1);
  CHECK_EQ(stops, 0);
  points.AtStep(0, Phase::kScaleOut, 1);
  CHECK_EQ(stops, 1);
}

}  // namespace
}  // namespace fastjax::test
