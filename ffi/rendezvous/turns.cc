#include "rendezvous/turns.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "runtime/completer.h"
#include "runtime/process_state.h"

namespace fastjax {

struct Turns::Turn {
  Token token = 0;
  const void* owner = nullptr;
  std::vector<Shared> before;     // that had not begun when this was made
  std::vector<Shared> followers;  // that are held, and wait for this
  Begin begin;                    // once it has been taken
  int32_t waits_for = 0;          // turns before it that have not begun
  bool taken = false;
  bool ended = false;  // has begun, or never will
  std::chrono::steady_clock::time_point deadline;
};

namespace {

// FASTJAX_DELAY_STARTS names the most milliseconds for which each exchange that has been started is delayed, at random
// and on a thread of its own. For tests only.
int64_t LongestDelay() {
  static const int64_t longest = [] {
    const char* const given = std::getenv("FASTJAX_DELAY_STARTS");  // NOLINT(concurrency-mt-unsafe)
    return given == nullptr ? int64_t{0} : static_cast<int64_t>(std::strtol(given, nullptr, 10));
  }();
  return longest;
}

std::chrono::microseconds RandomDelay() {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, 1000 * LongestDelay())(random));
}

Turns::Token FirstToken() {
  std::random_device random;
  return (Turns::Token{random()} << 32U) + random();
}

}  // namespace

Turns& Turns::Get() {
  struct Watched {
    std::shared_ptr<Turns> turns = std::make_shared<Turns>(FirstToken());
    Watched() { Watchdog::Get().Watch(turns); }
  };
  return *ProcessState<Watched>().turns;
}

Turns::Token Turns::Add(const void* owner, const std::vector<Token>& earlier) {
  auto turn = std::make_shared<Turn>();
  turn->owner = owner;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Token token : earlier) {
    if (const auto found = turns_.find(token); found != turns_.end()) turn->before.push_back(found->second);
  }
  turn->token = ++last_;
  turns_.emplace(turn->token, turn);
  return turn->token;
}

bool Turns::Take(Token token, Begin begin) {
  Shared turn;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = turns_.find(token);
    if (found == turns_.end() || found->second->taken) return false;
    turn = found->second;
    turn->taken = true;
    turn->begin = std::move(begin);
  }
  if (LongestDelay() == 0) {
    Hold(turn);
  } else {
    Completer::Get().Run([this, turn] {
      std::this_thread::sleep_for(RandomDelay());
      Hold(turn);
    });
  }
  return true;
}

void Turns::Hold(const Shared& turn) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Shared& other : turn->before) {
      if (other->ended) continue;
      other->followers.push_back(turn);
      ++turn->waits_for;
    }
    turn->before.clear();
    if (turn->waits_for > 0) {
      turn->deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(turn->begin.timeout_ms);
      held_.push_back(turn);
    }
  }
  if (turn->deadline == std::chrono::steady_clock::time_point()) return Run(turn, Status::Ok());
  Watchdog::Get().Touch();
  // The device may have failed before it was held, when nobody looked for it here.
  const std::shared_ptr<const Status> why = turn->begin.failed == nullptr ? nullptr : turn->begin.failed();
  if (why == nullptr) return;
  bool found = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    found = !TakeHeld([&](const Turn& held) { return &held == turn.get(); }).empty();
  }
  if (found) Run(turn, *why);
}

void Turns::Run(const Shared& turn, const Status& waited) {
  if (LongestDelay() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_.emplace_back(turn->begin.channel, turn->begin.partition);
  }
  const auto run = std::move(turn->begin.run);
  run(waited, [this, turn] { End(turn); });
}

// Others begin on threads of their own: what the exchange has completed may run the rest of the device's program.
void Turns::End(const Shared& turn) {
  std::vector<Shared> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (turn->ended) return;
    turn->ended = true;
    turns_.erase(turn->token);
    for (const Shared& follower : turn->followers) {
      if (--follower->waits_for > 0) continue;
      const auto at = std::find(held_.begin(), held_.end(), follower);
      if (at == held_.end()) continue;  // its time was up
      held_.erase(at);
      next.push_back(follower);
    }
    turn->followers.clear();
  }
  for (const Shared& follower : next) {
    Completer::Get().Run([this, follower] { Run(follower, Status::Ok()); });
  }
}

template <typename Condition>
std::vector<Turns::Shared> Turns::TakeHeld(Condition condition) {
  std::vector<Shared> taken;
  const auto left =
      std::stable_partition(held_.begin(), held_.end(), [&](const Shared& turn) { return !condition(*turn); });
  taken.assign(left, held_.end());
  held_.erase(left, held_.end());
  return taken;
}

bool Turns::Expire(std::chrono::steady_clock::time_point now) {
  std::vector<Shared> due;
  bool waiting = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    due = TakeHeld([&](const Turn& turn) { return turn.deadline <= now; });
    waiting = !held_.empty();
  }
  for (const Shared& turn : due) {
    Run(turn, Status::Deadline("it has waited " + Seconds(turn->begin.timeout_ms) +
                               " for its turn. An exchange that the program started before this one has not begun, and "
                               "never does if what it needs has failed."));
  }
  return waiting;
}

void Turns::OnFailed(const void* site, const FailedLaunch& launch) {
  std::vector<Shared> vain;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    vain = TakeHeld([&](const Turn& turn) {
      return turn.begin.site == site && turn.begin.run_id == launch.run_id &&
             launch.Why(turn.begin.partition) != nullptr;
    });
  }
  for (const Shared& turn : vain) {
    Completer::Get().Run([this, turn, why = launch.Why(turn->begin.partition)] { Run(turn, *why); });
  }
}

void Turns::Forget(const void* owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = turns_.begin(); at != turns_.end();) {
    at = at->second->owner == owner && !at->second->taken ? turns_.erase(at) : std::next(at);
  }
}

std::vector<std::pair<int64_t, int32_t>> Turns::TakeRecord() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(record_, {});
}

}  // namespace fastjax
