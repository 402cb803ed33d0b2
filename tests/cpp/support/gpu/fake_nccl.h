// What tests tell the fake NCCL, and ask it.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_H_

#include <atomic>

namespace fastjax::test {

struct FakeNccl {
  std::atomic<int> version{22707};
  std::atomic<int> live{0};         // communicators that were made and neither destroyed nor aborted
  std::atomic<int> made{0};         // communicators, ever
  std::atomic<int> aborted{0};      // communicators, ever
  std::atomic<int> lost_sends{0};   // so many of the next sends are lost
  std::atomic<int> async_error{0};  // what every communicator says has gone wrong meanwhile
  // What a communicator that does not block begins, a thread does this much later, in microseconds; and whoever asks
  // how it is waits this long, so that another thread may come meanwhile.
  std::atomic<int> late{1000};
  std::atomic<int> asking{200};
  // Not negative: what it begins is in progress for this many that ask, and at its end for the next.
  std::atomic<int> polls{-1};
  // What the next call of a kind says; it does nothing then.
  std::atomic<int> fail_id{0};
  std::atomic<int> fail_init{0};
  std::atomic<int> fail_send{0};
  std::atomic<int> fail_group_end{0};
  std::atomic<bool> to_self{false};  // and messages without bytes: for nccl_smoke
  std::atomic<long> mistakes{0};     // of whoever uses it, that NCCL would not forgive
};

constexpr const char* kFakeNcclSymbol = "fastjax_fake_nccl";  // a function without arguments that returns FakeNccl*

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_FAKE_NCCL_H_
