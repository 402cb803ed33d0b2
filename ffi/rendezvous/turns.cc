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
  std::vector<Shared> before;  // that had not begun when this was made
  Begin begin;                 // once it has been taken
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

constexpr std::chrono::milliseconds kPatienceWithDelays{60'000};

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

bool Turns::CanBegin(const Turn& turn) const {
  return std::all_of(turn.before.begin(), turn.before.end(), [this](const Shared& earlier) {
    return earlier->ended || (!earlier->taken && late_.count(earlier->owner) > 0);
  });
}

void Turns::Hold(const Shared& turn) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!CanBegin(*turn)) {
      const auto patience = LongestDelay() > 0 ? kPatienceWithDelays : turn->begin.patience;
      turn->deadline = std::chrono::steady_clock::now() + patience;
      held_.push_back(turn);
    }
  }
  if (turn->deadline == std::chrono::steady_clock::time_point()) return Run(turn);
  Watchdog::Get().Touch();
}

void Turns::Run(const Shared& turn) {
  if (LongestDelay() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_.emplace_back(turn->begin.channel, turn->begin.partition);
  }
  const auto run = std::move(turn->begin.run);
  run([this, turn] { End(turn); });
}

void Turns::End(const Shared& turn) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (turn->ended) return;
    turn->ended = true;
    turn->before.clear();
    turns_.erase(turn->token);
  }
  RunHeld();
}

// Each begins on a thread of its own: what the exchange before it has completed may run the rest of the device's
// program.
void Turns::RunHeld() {
  std::vector<Shared> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto free =
        std::stable_partition(held_.begin(), held_.end(), [this](const Shared& t) { return !CanBegin(*t); });
    next.assign(free, held_.end());
    held_.erase(free, held_.end());
  }
  for (const Shared& turn : next) {
    Completer::Get().Run([this, turn] { Run(turn); });
  }
}

bool Turns::Expire(std::chrono::steady_clock::time_point now) {
  bool due = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Shared& turn : held_) {
      if (turn->deadline > now) continue;
      due = true;
      for (const Shared& earlier : turn->before) {
        if (!earlier->ended && !earlier->taken) late_.insert(earlier->owner);
      }
    }
  }
  if (due) RunHeld();
  const std::lock_guard<std::mutex> lock(mutex_);
  return !held_.empty();
}

void Turns::Forget(const void* owner) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    late_.erase(owner);
    for (auto at = turns_.begin(); at != turns_.end();) {
      Turn& turn = *at->second;
      if (turn.owner != owner || turn.taken) {
        ++at;
        continue;
      }
      turn.ended = true;  // whoever is held waits for it no more
      at = turns_.erase(at);
    }
  }
  RunHeld();
}

std::vector<std::pair<int64_t, int32_t>> Turns::TakeRecord() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(record_, {});
}

}  // namespace fastjax
