// The pool that moves rows: every byte of every step, in steps, for many jobs at once.
#include "runtime/copy_pool.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exchange/status.h"
#include "kernels/copy.h"
#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

using kernels::Destination;

// A job whose every step shuffles all that the step before it wrote, in pieces of random sizes: a piece that is copied
// too early, twice to different places or not at all shows at the end.
class Chain {
 public:
  // The copies of several steps are added at once, in any order, and every other step is empty.
  Chain(int64_t bytes, int32_t steps, int64_t largest_piece, uint64_t seed)
      : buffers_(static_cast<size_t>(steps) + 1, std::vector<std::byte>(static_cast<size_t>(bytes) + 2 * kGuard)) {
    std::mt19937_64 random(seed);
    for (auto& buffer : buffers_) {
      for (size_t at = 0; at < buffer.size(); at += sizeof(uint64_t)) {
        const uint64_t bits = random();
        std::memcpy(buffer.data() + at, &bits, std::min(sizeof(bits), buffer.size() - at));
      }
    }
    expected_ = buffers_;
    for (int32_t step = 0; step < steps; ++step) {
      AddStep(static_cast<size_t>(step), bytes, largest_piece, &random);
    }
    if (steps == 1) {
      for (const CopyJob::OfStep& copy : copies_) job_.Add(copy.op);
      return;
    }
    copies_.push_back({1, {nullptr, nullptr, 0, Destination::kCached}});
    std::shuffle(copies_.begin(), copies_.end(), random);
    job_.AddSteps(copies_, 2 * steps);
  }

  CopyJob* job() { return &job_; }
  bool IsRight() const {
    return std::equal(buffers_.begin(), buffers_.end(), expected_.begin(),
                      [](const auto& a, const auto& b) { return std::memcmp(a.data(), b.data(), a.size()) == 0; });
  }
  // Ready for another run that must not profit from this one.
  void Spoil() {
    for (size_t i = 1; i < buffers_.size(); ++i) {
      std::fill(buffers_[i].begin() + kGuard, buffers_[i].end() - kGuard, std::byte{0xEE});
    }
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 32;

  void AddStep(size_t step, int64_t bytes, int64_t largest_piece, std::mt19937_64* random) {
    std::vector<int64_t> pieces;
    for (int64_t left = bytes; left > 0; left -= pieces.back()) {
      pieces.push_back(std::min(left, static_cast<int64_t>(1 + (*random)() % static_cast<uint64_t>(largest_piece))));
    }
    std::vector<int64_t> source(pieces.size());
    int64_t end = 0;
    for (size_t i = 0; i < pieces.size(); ++i) source[i] = std::exchange(end, end + pieces[i]);
    end = 0;
    for (const int32_t i : Numbers(static_cast<int32_t>(pieces.size()), random)) {
      const Destination destination = (*random)() % 2 == 0 ? Destination::kCached : Destination::kStreamed;
      copies_.push_back({static_cast<int32_t>(2 * step),
                         {buffers_[step + 1].data() + kGuard + end, buffers_[step].data() + kGuard + source[i],
                          pieces[i], destination}});
      std::copy_n(expected_[step].begin() + kGuard + source[i], pieces[i], expected_[step + 1].begin() + kGuard + end);
      end += pieces[i];
    }
  }

  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::vector<std::byte>> expected_;
  std::vector<CopyJob::OfStep> copies_;
  CopyJob job_;
};

struct Size {
  int64_t bytes;
  int32_t steps;
  int64_t largest_piece;
};

constexpr Size kSizes[] = {
    {1, 1, 1},
    {1, 40, 1},
    {300, 7, 40},
    {4096, 3, 4096},
    {100'000, 30, 5000},
    {131'072, 1, 700},
    {200'000, 2, 200'000},
    {1'000'000, 5, 3000},
    {2'500'000, 3, 900'000},
    {70'000, 20, 70'000},
};

TEST(Inline) {
  for (const Size& size : kSizes) {
    const Context context(std::to_string(size.bytes) + " bytes in " + std::to_string(size.steps) + " steps");
    Chain chain(size.bytes, size.steps, size.largest_piece, 1);
    CHECK_EQ(chain.job()->bytes(), size.bytes * size.steps);
    CHECK_EQ(chain.job()->steps(), size.steps);
    CHECK(!chain.IsRight());
    chain.job()->RunInline();
    CHECK(chain.IsRight());
  }
}

// What `done` finds counts: by then all must be there.
TEST(Pool) {
  constexpr int32_t kStarters = 6;
  constexpr auto kCount = static_cast<int32_t>(std::size(kSizes));
  std::vector<std::unique_ptr<Chain>> chains;
  for (int32_t i = 0; i < kStarters * kCount; ++i) {
    const Size& size = kSizes[i % kCount];
    chains.push_back(
        std::make_unique<Chain>(size.bytes, size.steps, size.largest_piece, static_cast<uint64_t>(100 + i)));
  }
  for (int32_t round = 0; round < 4; ++round) {
    const Outcomes outcomes(static_cast<int32_t>(chains.size()));
    RunThreads(kStarters, [&](int32_t starter) {
      for (int32_t i = starter; i < outcomes.count(); i += kStarters) {
        Chain* chain = chains[i].get();
        chain->Spoil();
        CopyPool::Get().Run(chain->job(), i % 5, [chain, done = outcomes.For(i)] {
          done(chain->IsRight() ? Status::Ok() : Status::Internal("wrong bytes"));
        });
      }
    });
    outcomes.WaitAll();
    for (int32_t i = 0; i < outcomes.count(); ++i) {
      CHECK_EQ(outcomes.status(i).message, "");
      CHECK(chains[i]->IsRight());
    }
  }
}

// Jobs that are run again by the thread that finished them, and that are gone by the time it returns.
TEST(FromDone) {
  constexpr int32_t kJobs = 10;
  constexpr int32_t kRounds = 20;
  const Outcomes outcomes(kJobs);
  std::atomic<long> wrong{0};
  struct Repeat {
    std::unique_ptr<Chain> chain;
    int32_t rounds;
    std::atomic<long>* wrong;
    Completion finished;

    static void Run(std::shared_ptr<Repeat> self) {
      self->chain->Spoil();
      CopyJob* job = self->chain->job();
      CopyPool::Get().Run(job, 0, [self = std::move(self)] {
        if (!self->chain->IsRight()) ++*self->wrong;
        if (--self->rounds > 0) return Run(self);
        self->chain.reset();
        self->finished(Status::Ok());
      });
    }
  };
  for (int32_t i = 0; i < kJobs; ++i) {
    auto repeat = std::make_shared<Repeat>();
    repeat->chain = std::make_unique<Chain>(200'000, 4, 30'000, static_cast<uint64_t>(i));
    repeat->rounds = kRounds;
    repeat->wrong = &wrong;
    repeat->finished = outcomes.For(i);
    Repeat::Run(std::move(repeat));
  }
  outcomes.WaitAll();
  CHECK_EQ(wrong.load(), 0);
}

// Jobs of earlier launches go first whenever they come, with all of their steps.
TEST(Order) {
  const int32_t threads = CopyPool::Get().threads();
  std::promise<void> one, others;
  const std::shared_future<void> go_one = one.get_future().share(), go_others = others.get_future().share();
  std::vector<std::unique_ptr<Chain>> chains;
  const auto add = [&](int32_t steps) {
    chains.push_back(std::make_unique<Chain>(1'000'000, steps, 30'000, chains.size()));
    return chains.back()->job();
  };
  // One thread is left to copy, once all jobs are there.
  const Outcomes held(threads), freed(threads);
  for (int32_t i = 0; i < threads; ++i) {
    CopyPool::Get().Run(add(1), 0, [=, go = i == 0 ? go_one : go_others] {
      held.For(i)(Status::Ok());
      go.wait();
      freed.For(i)(Status::Ok());
    });
  }
  held.WaitAll();
  constexpr int64_t kOrders[] = {4, 2, 3, 2, 1};
  const Outcomes outcomes(static_cast<int32_t>(std::size(kOrders)));
  std::vector<int32_t> ended;  // by the one thread
  for (int32_t i = 0; i < outcomes.count(); ++i) {
    CopyPool::Get().Run(add(3), kOrders[i], [i, &ended, done = outcomes.For(i)] {
      ended.push_back(i);
      done(Status::Ok());
    });
  }
  one.set_value();
  outcomes.WaitAll();
  CHECK(ended == std::vector<int32_t>({4, 1, 3, 2, 0}));
  others.set_value();
  freed.WaitAll();
  for (const auto& chain : chains) CHECK(chain->IsRight());
}

TEST(Fill) {
  CopyJob job;
  CHECK_EQ(job.steps(), 0);
  bool called = false;
  CopyPool::Get().Run(&job, 0, [&] { called = true; });
  CHECK(called);  // nothing to do: at once
  const std::vector<std::byte> source(100, std::byte{1});
  std::vector<std::byte> destination(100);
  const auto op = [&](int64_t at, int64_t bytes) {
    return CopyOp{destination.data() + at, source.data(), bytes, Destination::kCached};
  };
  job.Add(op(0, 0));
  CHECK_EQ(job.steps(), 0);
  job.Add(op(10, 5));
  job.Add(op(20, 0));
  job.Add(op(30, 6));
  CHECK_EQ(job.steps(), 1);
  CHECK_EQ(job.bytes(), 11);
  const Outcomes outcome(1);
  CopyPool::Get().Run(&job, 0, [done = outcome.For(0)] { done(Status::Ok()); });
  outcome.WaitAll();
  CHECK_EQ(std::count(destination.begin(), destination.end(), std::byte{1}), 11);
  CHECK(destination[10] == std::byte{1} && destination[14] == std::byte{1} && destination[35] == std::byte{1});
  job.Clear();
  CHECK_EQ(job.steps(), 0);
  CHECK_EQ(job.bytes(), 0);
  CHECK_GE(CopyPool::Get().threads(), 1);
}

}  // namespace
}  // namespace fastjax::test
