// Exchanges that have been started begin in their turn, or end with a reason.
#include "rendezvous/turns.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using std::chrono_literals::operator""s;

// What is told of one exchange. It has begun when it has been run.
struct Begun {
  std::promise<Status> run;

  Turns::Begin As(int32_t partition = 0, const void* site = nullptr, int64_t run_id = 1) {
    return {site, run_id, partition, 7, 60'000, [this](const Status& waited, const std::function<void()>& begun) {
              begun();
              begun();  // a second time means nothing
              run.set_value(waited);
            }};
  }
  std::future<Status> Wait() { return run.get_future(); }
};

bool IsReady(const std::future<Status>& status) { return status.wait_for(0s) == std::future_status::ready; }

TEST(ALaterOneWaits) {
  Turns turns;
  Begun first, second, third;
  auto first_run = first.Wait(), second_run = second.Wait(), third_run = third.Wait();
  const Turns::Token one = turns.Add(nullptr, {});
  const Turns::Token two = turns.Add(nullptr, {one, 12345});  // one that is no token
  const Turns::Token three = turns.Add(nullptr, {two, one});
  CHECK(turns.Take(three, third.As()));
  CHECK(turns.Take(two, second.As()));
  CHECK(!IsReady(second_run) && !IsReady(third_run));
  CHECK(turns.Take(one, first.As()));
  CHECK(first_run.get().ok());
  CHECK(second_run.get().ok());
  CHECK(third_run.get().ok());
  // All have begun: nothing waits for them.
  Begun last;
  auto last_run = last.Wait();
  CHECK(turns.Take(turns.Add(nullptr, {one, three}), last.As()));
  CHECK(IsReady(last_run));
}

TEST(ATurnIsTakenOnce) {
  Turns turns;
  Begun first, again;
  const Turns::Token token = turns.Add(nullptr, {});
  CHECK(!turns.Take(token + 1, again.As()));
  CHECK(turns.Take(token, first.As()));
  CHECK(!turns.Take(token, again.As()));
}

TEST(TimeIsUp) {
  Turns turns;
  Begun held;
  auto run = held.Wait();
  CHECK(turns.Take(turns.Add(nullptr, {turns.Add(nullptr, {})}), held.As()));
  CHECK(turns.Expire(std::chrono::steady_clock::now()));
  CHECK(!IsReady(run));
  CHECK(!turns.Expire(std::chrono::steady_clock::now() + 61s));
  const Status status = run.get();
  CHECK(status.code == Code::kDeadlineExceeded);
  CHECK(status.message.find("60.0 s for its turn") != std::string::npos);
}

TEST(ADeviceThatHasFailed) {
  Turns turns;
  Begun held, other;
  auto run = held.Wait(), other_run = other.Wait();
  const int site = 0;
  const Turns::Token never = turns.Add(nullptr, {});
  CHECK(turns.Take(turns.Add(nullptr, {never}), held.As(2, &site)));
  CHECK(turns.Take(turns.Add(nullptr, {never}), other.As(1, &site)));
  FailedLaunch launch;
  launch.run_id = 1;
  launch.errors = {nullptr, nullptr, std::make_shared<const Status>(Status::Invalid("no rows"))};
  turns.OnFailed(&turns, launch);  // of another call site
  CHECK(!IsReady(run));
  turns.OnFailed(&site, launch);
  CHECK(run.get().message == "no rows");
  CHECK(!IsReady(other_run));
}

TEST(ADeviceThatHadFailedBefore) {
  Turns turns;
  Begun held;
  auto run = held.Wait();
  Turns::Begin begin = held.As();
  begin.failed = [] { return std::make_shared<const Status>(Status::Invalid("no rows")); };
  CHECK(turns.Take(turns.Add(nullptr, {turns.Add(nullptr, {})}), std::move(begin)));
  CHECK(run.get().message == "no rows");
}

TEST(TurnsThatNobodyTookAreForgotten) {
  Turns turns;
  const int owner = 0;
  Begun begun;
  const Turns::Token token = turns.Add(&owner, {});
  turns.Forget(&owner);
  CHECK(!turns.Take(token, begun.As()));
}

}  // namespace
}  // namespace fastjax::test
