// Plans random problems by every scheduler and checks each plan.
//
//   random_plans COUNT SEED [--threads N]            plans number 0 ... COUNT - 1 of SEED
//   random_plans --replay SEED INDEX                 one of them, made smaller if it is wrong
//   random_plans --digest COUNT SEED [--threads N]   prints one hash of all of them, and checks nothing
//
// A plan depends on SEED and its number only.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "choices.h"
#include "digest.h"
#include "plan_checks.h"
#include "problem.h"
#include "shrink.h"
#include "support/check.h"
#include "support/transfers.h"

// The sanitizers' run-time libraries define it; null without one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace fastjax::test {
namespace {

constexpr int32_t kMaxDevices = 320;
constexpr int64_t kShare = 32;        // plans that a thread takes at a time
constexpr int64_t kMostFailures = 5;  // after which no more are looked for

Choices ChoicesOf(uint64_t seed, int64_t index) {
  Digest digest;
  digest.Add(seed);
  digest.Add(static_cast<uint64_t>(index));
  return Choices(digest.value());
}

planner::Scheduler SchedulerOf(int64_t index) {
  return static_cast<planner::Scheduler>(index % planner::NumSchedulers());
}

Problem ProblemOf(uint64_t seed, int64_t index) {
  Choices choices = ChoicesOf(seed, index);
  return DrawProblem(SchedulerOf(index), kMaxDevices, &choices);
}

struct PlanNumber {
  uint64_t seed;
  int64_t index;
};
thread_local PlanNumber at_work = {0, -1};

// When the process dies: a sanitizer's report, a failed assertion or a signal does not say which plan was at work.
void Say() {
  const int64_t index = std::exchange(at_work.index, -1);  // once, also if saying it fails
  if (index >= 0) std::cerr << "random_plans --replay " << at_work.seed << " " << index << std::endl;
}

// Not safe in a signal handler, strictly; but there is nothing left to lose.
void OnSignal(int signal) {
  Say();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void SayWhenDying() {
  std::signal(SIGABRT, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) return __sanitizer_set_death_callback(Say);
  for (const int signal : {SIGFPE, SIGILL, SIGSEGV}) std::signal(signal, OnSignal);
}

// work(index) for all of [0, count), each once, on any of the threads, until it says that it has seen enough.
template <typename Work>
void ForEach(int64_t count, int32_t threads, uint64_t seed, Work work) {
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t first; (first = next.fetch_add(kShare)) < count;) {
      for (int64_t index = first; index < std::min(first + kShare, count); ++index) {
        at_work = {seed, index};
        if (!work(index)) next = count;
      }
    }
    at_work.index = -1;
  };
  std::vector<std::thread> others;
  for (int32_t i = 1; i < threads; ++i) others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
}

int CheckAll(int64_t count, uint64_t seed, int32_t threads) {
  std::atomic<int64_t> failures{0};
  std::atomic<int64_t> done{0};
  ForEach(count, threads, seed, [&](int64_t index) {
    const Problem problem = ProblemOf(seed, index);
    const std::string wrong = CheckProblem(problem);
    // A million take half an hour or more.
    if (const int64_t now = ++done; now % 50'000 == 0) std::cerr << std::to_string(now) + " plans are checked\n";
    if (wrong.empty()) return true;
    std::ostringstream text;
    text << wrong << "\n  random_plans --replay " << seed << " " << index << "\n";
    Print(problem, &text);
    std::cerr << text.str();
    return ++failures < kMostFailures;
  });
  std::cout << "random_plans: seed " << seed << ", " << count << " plans, " << failures << " wrong plans\n";
  return AllChecks().any && failures == 0 ? 0 : 1;
}

int PrintDigest(int64_t count, uint64_t seed, int32_t threads) {
  std::atomic<uint64_t> sum{0};
  ForEach(count, threads, seed, [&](int64_t index) {
    Digest digest;
    digest.Add(static_cast<uint64_t>(index));
    digest.Add(DigestProblem(ProblemOf(seed, index)));
    sum += digest.value();
    return true;
  });
  std::cout << std::hex << std::setw(16) << std::setfill('0') << sum << "\n";
  return 0;
}

void PrintTransfers(const Problem& problem) {
  constexpr size_t kPrinted = 200;
  planner::Planner plan(problem.topology, problem.scheduler, problem.row_bytes);
  plan.Plan(problem.traffic.traffic.data());
  const std::vector<planner::Transfer> all = AllTransfers(&plan);
  std::cerr << "  phase stage src dst origin target first_row rows src_row dst_row\n";
  for (size_t i = 0; i < std::min(all.size(), kPrinted); ++i) {
    const planner::Transfer& t = all[i];
    std::cerr << "  " << static_cast<int>(t.phase) << " " << t.stage << " " << t.src << " " << t.dst << " " << t.origin
              << " " << t.target << " " << t.first_row << " " << t.rows << " " << t.src_row << " " << t.dst_row << "\n";
  }
}

int Replay(uint64_t seed, int64_t index) {
  at_work = {seed, index};
  const Problem problem = ProblemOf(seed, index);
  const std::string wrong = CheckProblem(problem);
  Print(problem, &std::cerr);
  if (wrong.empty()) {
    std::cerr << "random_plans: nothing wrong\n";
    return 0;
  }
  const std::string check = wrong.substr(0, wrong.find(": "));  // file and line: not to end with another mistake
  const Problem small = Shrink(
      problem, [&](const Problem& smaller) { return CheckProblem(smaller).compare(0, check.size(), check) == 0; });
  std::cerr << wrong << "\nmade smaller: " << CheckProblem(small) << "\n";
  Print(small, &std::cerr);
  PrintTransfers(small);
  return 1;
}

int Usage() {
  std::cerr << "usage: random_plans COUNT SEED [--threads N]\n"
               "       random_plans --digest COUNT SEED [--threads N]\n"
               "       random_plans --replay SEED INDEX\n";
  return 2;
}

int Main(std::vector<std::string> words) {
  int32_t threads = 1;
  const auto option = std::find(words.begin(), words.end(), "--threads");
  if (option != words.end()) {
    if (option + 1 == words.end()) return Usage();
    threads = std::clamp(std::stoi(option[1]), 1, 1024);
    words.erase(option, option + 2);
  }
  const auto number = [&](size_t i) { return static_cast<int64_t>(std::stoll(words[i])); };
  const auto seed = [&](size_t i) { return static_cast<uint64_t>(std::stoull(words[i])); };
  const std::string mode = words.empty() || words[0].substr(0, 2) != "--" ? "" : words[0];
  if (mode.empty() && words.size() == 2) return CheckAll(number(0), seed(1), threads);
  if (mode == "--digest" && words.size() == 3) return PrintDigest(number(1), seed(2), threads);
  if (mode == "--replay" && words.size() == 3) return Replay(seed(1), number(2));
  return Usage();
}

}  // namespace
}  // namespace fastjax::test

int main(int argc, char** argv) {
#ifdef __GLIBC__
  // Planners come and go; what they had is kept, or most of the time would go to the kernel for fresh pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  fastjax::test::SayWhenDying();
  return fastjax::test::Main({argv + 1, argv + argc});
}
