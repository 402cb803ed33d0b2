// How exchanges that send everything at once are cut: held against a replay of pieces, and against all even cuts.
#include "planner/pieces.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "support/check.h"

namespace fastjax::test {
namespace {

using planner::AroundWork;
using planner::CutAtOnce;
using planner::kAll;
using planner::kMostPieces;
using planner::Picoseconds;
using planner::Pieces;
using planner::Share;

constexpr Picoseconds kMicrosecond = 1'000'000;

struct Problem {
  Picoseconds scale_out;
  AroundWork balance;
  AroundWork redistribute;
  Picoseconds start_up;
  Share smallest;
};

Pieces Cut(const Problem& problem) {
  return CutAtOnce(problem.scale_out, problem.balance, problem.redistribute, problem.start_up, problem.smallest);
}

Pieces Even(int32_t count) {
  Pieces pieces;
  pieces.count = count;
  for (int32_t i = 0; i <= count; ++i) pieces.edges[static_cast<size_t>(i)] = kAll * i / count;
  return pieces;
}

double Us(Picoseconds time) { return static_cast<double>(time) / static_cast<double>(kMicrosecond); }

// Of all work, what belongs to the first `share`, or to all but the last.
double Part(Share share, Share none) {
  return static_cast<double>(std::max<Share>(share - none, 0)) / static_cast<double>(kAll - none);
}

// When the last row is there, if a piece begins to cross when its balance is done and the one before it has crossed,
// and is redistributed when it has crossed and those before it are redistributed. Work is spread evenly, but for the
// share at one end that needs none.
double Replay(const Problem& problem, const Pieces& pieces) {
  const double balance = Us(problem.balance.time), redistribute = Us(problem.redistribute.time);
  double crossed = 0, done = 0;
  for (int32_t i = 0; i < pieces.count; ++i) {
    const Share begin = pieces.edges[static_cast<size_t>(i)], end = pieces.edges[static_cast<size_t>(i) + 1];
    const double balanced = balance * Part(end, problem.balance.none);
    const double share = static_cast<double>(end - begin) / static_cast<double>(kAll);
    crossed = std::max(crossed, balanced) + Us(problem.start_up) + share * Us(problem.scale_out);
    const Share none = problem.redistribute.none;
    done = std::max(done, crossed) + redistribute * (Part(kAll - begin, none) - Part(kAll - end, none));
  }
  return done;
}

void CheckCut(const Problem& problem, const Pieces& pieces) {
  CHECK_LE(1, pieces.count);
  CHECK_LE(pieces.count, kMostPieces);
  CHECK_EQ(pieces.edges[0], 0);
  CHECK_EQ(pieces.edges[static_cast<size_t>(pieces.count)], kAll);
  for (int32_t i = 0; i < pieces.count; ++i) {
    const Share size = pieces.edges[static_cast<size_t>(i) + 1] - pieces.edges[static_cast<size_t>(i)];
    CHECK_LE(1, size);
    if (pieces.count > 1) CHECK_LE(std::min(problem.smallest, kAll), size);
  }
  CHECK_LE(0, Us(pieces.balance));
  CHECK_LE(Us(pieces.balance), Us(problem.balance.time));
  CHECK_LE(0, Us(pieces.redistribute));
  CHECK_LE(Us(pieces.redistribute), Us(problem.redistribute.time));
}

TEST(NothingAround) {
  const Pieces pieces = Cut({100 * kMicrosecond, {}, {}, 10 * kMicrosecond, 1});
  CHECK_EQ(pieces.count, 1);
  CHECK_EQ(pieces.edges[1], kAll);
  CHECK_EQ(Us(pieces.balance), 0.0);
  CHECK_EQ(Us(pieces.redistribute), 0.0);
}

TEST(ShortExchangesStayWhole) {
  const Pieces pieces = Cut({15 * kMicrosecond, {2 * kMicrosecond, 0}, {3 * kMicrosecond, 0}, 10 * kMicrosecond, 1});
  CHECK_EQ(pieces.count, 1);
  CHECK_EQ(Us(pieces.balance), 1.0);  // half of it
  CHECK_EQ(Us(pieces.redistribute), 3.0);
}

TEST(NoPieceIsTooSmall) {
  const Pieces pieces = Cut({1000 * kMicrosecond, {100 * kMicrosecond, 0}, {100 * kMicrosecond, 0}, 0, kAll / 3});
  CHECK_LE(pieces.count, 3);
  CHECK_EQ(Cut({1000 * kMicrosecond, {100 * kMicrosecond, 0}, {100 * kMicrosecond, 0}, 0, kAll}).count, 1);
  CHECK_EQ(Cut({1000 * kMicrosecond, {100 * kMicrosecond, 0}, {100 * kMicrosecond, 0}, 0, 5 * kAll}).count, 1);
}

// Of the work, what lies bare, with lumps counted, and start-ups come to 215 us of 6,700.
TEST(WhatIsHidden) {
  const Problem problem = {
      3746 * kMicrosecond, {1407 * kMicrosecond, 0}, {1543 * kMicrosecond, 0}, 10 * kMicrosecond, 1};
  const Pieces pieces = Cut(problem);
  CheckCut(problem, pieces);
  CHECK_LE(Us(pieces.count * problem.start_up + pieces.balance + pieces.redistribute), 215.0);
  const double even = Replay(problem, Even(8));
  CHECK_LE(Replay(problem, pieces), 0.97 * even);
}

// Nothing at one end needs work: it begins, or ends, with more.
TEST(ShareWithoutWork) {
  const AroundWork work = {100 * kMicrosecond, 0};
  const AroundWork late = {100 * kMicrosecond, kAll / 4};
  const Pieces front = Cut({1000 * kMicrosecond, late, work, 10 * kMicrosecond, 1});
  CHECK_LE(kAll / 4, front.edges[1]);
  const Pieces back = Cut({1000 * kMicrosecond, work, late, 10 * kMicrosecond, 1});
  CHECK_LE(back.edges[static_cast<size_t>(back.count) - 1], kAll - kAll / 5);
  CHECK_LE(Us(front.balance), 5.0);
  CHECK_LE(Us(back.redistribute), 5.0);
}

// Where servers are slower inside than between, no sizes hide the work; then pieces are even.
TEST(SlowServers) {
  const Problem problem = {1000 * kMicrosecond, {2000 * kMicrosecond, 0}, {2000 * kMicrosecond, 0}, kMicrosecond, 1};
  const Pieces pieces = Cut(problem);
  CHECK_EQ(pieces.count, kMostPieces);
  for (int32_t i = 0; i <= kMostPieces; ++i) CHECK_EQ(pieces.edges[static_cast<size_t>(i)], kAll / kMostPieces * i);
}

// By a replay of evenly spread work never much worse than the best even cut: what is counted on beyond that, lumps and
// NICs that wait for no balance, costs a little where there is none, and more where a share of the rows needs no work.
TEST(AgainstEvenCuts) {
  std::mt19937_64 random(1);
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  for (int trial = 0; trial < 20'000; ++trial) {
    const Picoseconds scale_out = Picoseconds{1 + up_to(1'000'000)} << up_to(40);
    const auto around = [&] { return AroundWork{scale_out * up_to(150) / 100, up_to(3) == 0 ? up_to(kAll / 2) : 0}; };
    const Problem problem = {scale_out, around(), around(), scale_out * up_to(50) / 1000, 1 + up_to(kAll / 20)};
    const Pieces pieces = Cut(problem);
    CheckCut(problem, pieces);
    double best = Replay(problem, Even(1));
    for (int32_t count = 2; count <= kMostPieces && problem.smallest * count <= kAll; ++count) {
      best = std::min(best, Replay(problem, Even(count)));
    }
    const bool all_needs_work = problem.balance.none == 0 && problem.redistribute.none == 0;
    CHECK_LE(Replay(problem, pieces), (all_needs_work ? 1.06 : 1.2) * best);
  }
}

// As wide as 2^62 rows of any size make them.
TEST(AnyTimes) {
  const Picoseconds long_time = Picoseconds{1} << 120;
  const Problem problem = {long_time, {long_time / 4, 0}, {long_time / 8, kAll}, long_time / 1000, 1};
  CheckCut(problem, Cut(problem));
  const Problem no_work = {long_time, {long_time, kAll}, {long_time, kAll}, 0, 1};
  CheckCut(no_work, Cut(no_work));
  CheckCut({0, {}, {}, 0, 1}, Cut({0, {}, {}, 0, 1}));
}

}  // namespace
}  // namespace fastjax::test
