// Exchanges that have been started begin in their turn, whatever becomes of those before them.
#include "rendezvous/turns.h"

#include <chrono>
#include <future>

#include "support/check.h"

namespace fastjax::test {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""s;

struct Begun {
  std::promise<void> run;

  Turns::Begin AsBegin() {
    return {7, 0, 1h, [this](const std::function<void()>& begun) {
              begun();
              begun();  // a second time means nothing
              run.set_value();
            }};
  }
};

bool IsReady(const std::future<void>& future) { return future.wait_for(0s) == std::future_status::ready; }

TEST(ALaterOneWaits) {
  Turns turns;
  Begun first, second, third;
  auto first_run = first.run.get_future(), second_run = second.run.get_future(), third_run = third.run.get_future();
  const Turns::Token one = turns.Add(nullptr, {});
  const Turns::Token two = turns.Add(nullptr, {one, 12345});  // one that is no token
  const Turns::Token three = turns.Add(nullptr, {two, one});
  CHECK(turns.Take(three, third.AsBegin()));
  CHECK(turns.Take(two, second.AsBegin()));
  CHECK(!IsReady(second_run) && !IsReady(third_run));
  CHECK(turns.Take(one, first.AsBegin()));
  first_run.get();
  second_run.get();
  third_run.get();
  // All have begun: nothing waits for them.
  Begun last;
  auto last_run = last.run.get_future();
  CHECK(turns.Take(turns.Add(nullptr, {one, three}), last.AsBegin()));
  CHECK(IsReady(last_run));
}

TEST(ATurnIsTakenOnce) {
  Turns turns;
  Begun first, again;
  const Turns::Token token = turns.Add(nullptr, {});
  CHECK(!turns.Take(token + 1, again.AsBegin()));
  CHECK(turns.Take(token, first.AsBegin()));
  CHECK(!turns.Take(token, again.AsBegin()));
}

TEST(WhatHasNotBeenCalledIsWaitedForOnceOnly) {
  Turns turns;
  const int late = 0, other = 0;
  const Turns::Token first = turns.Add(&late, {});
  Begun second, third, fourth;
  auto second_run = second.run.get_future(), third_run = third.run.get_future(), fourth_run = fourth.run.get_future();
  const Turns::Token two = turns.Add(&other, {first});
  CHECK(turns.Take(turns.Add(&other, {first, two}), third.AsBegin()));
  CHECK(turns.Take(two, second.AsBegin()));
  CHECK(turns.Expire(std::chrono::steady_clock::now()));
  CHECK(!IsReady(second_run) && !IsReady(third_run));
  turns.Expire(std::chrono::steady_clock::now() + 1h);
  second_run.get();
  third_run.get();  // it waited for the second, which had been called
  CHECK(turns.Take(turns.Add(&other, {turns.Add(&late, {})}), fourth.AsBegin()));
  CHECK(IsReady(fourth_run));
}

TEST(CallSitesThatAreNoMore) {
  Turns turns;
  const int late = 0, other = 0;
  Begun first, second, held;
  auto first_run = first.run.get_future(), second_run = second.run.get_future(), held_run = held.run.get_future();
  CHECK(turns.Take(turns.Add(&other, {turns.Add(&late, {})}), first.AsBegin()));
  CHECK(!IsReady(first_run));
  turns.Forget(&late);
  first_run.get();
  CHECK(turns.Take(turns.Add(&other, {turns.Add(&late, {})}), second.AsBegin()));
  turns.Expire(std::chrono::steady_clock::now() + 1h);
  second_run.get();
  // Another call site may get its place in memory, and is waited for.
  turns.Forget(&late);
  CHECK(turns.Take(turns.Add(&other, {turns.Add(&late, {})}), held.AsBegin()));
  CHECK(!IsReady(held_run));
  turns.Forget(&late);
  held_run.get();
}

TEST(TurnsThatNobodyTookAreForgotten) {
  Turns turns;
  const int owner = 0;
  Begun begun;
  const Turns::Token token = turns.Add(&owner, {});
  turns.Forget(&owner);
  CHECK(!turns.Take(token, begun.AsBegin()));
}

}  // namespace
}  // namespace fastjax::test
