// Devices of the emulated GPU that exchange rows as XLA has them do it: on streams that have work before the exchange,
// and after.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_GPU_RIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_GPU_RIG_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/operation.h"
#include "kernels/driver.h"
#include "support/check.h"

namespace fastjax::test {

// At the end of a program: no completion was called twice, no thread without a device called the driver, and no kernel
// was loaded by its launch.
void CheckNoMisuse();

// The driver of the emulated GPU, of which calls can be made to fail.
class FaultyDriver {
 public:
  FaultyDriver();
  const kernels::Driver* get() const { return &driver_; }

  // The call after `calls` more fails, of those that put something on a stream or make something; -1: none.
  static void FailAfter(int64_t calls);
  // Puts an end to that; returns whether a call has failed.
  static bool Stop();

  // Counts these calls instead, and stops counting.
  static void Count();
  static int64_t Counted();

 private:
  kernels::Driver driver_;
};

// `driver` without access to peers.
kernels::Driver WithoutPeers(const kernels::Driver& driver);
const kernels::Driver* DriverWithoutPeers();

// A stream of a device.
struct OwnStream {
  explicit OwnStream(int32_t device = 0) {
    fastjax_gpu_driver()->SetDevice(device);
    CHECK_EQ(fastjax_gpu_driver()->CreateStream(&stream), 0);
    fastjax_gpu_driver()->SetDevice(0);
  }
  ~OwnStream() { fastjax_gpu_driver()->DestroyStream(stream); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  void Synchronize() const { CHECK_EQ(fastjax_gpu_driver()->SynchronizeStream(stream), 0); }

  kernels::Stream stream = nullptr;
};

// What a stream has to do until it is let go. Must live as long as that.
class Computation {
 public:
  void PutOn(kernels::Stream stream) {
    const auto run = [](void* data) {
      auto* const own = static_cast<Computation*>(data);
      std::unique_lock<std::mutex> lock(own->mutex_);
      own->changed_.wait(lock, [own] { return own->over_; });
    };
    CHECK_EQ(fastjax_gpu_driver()->CallHost(stream, run, this), 0);
  }
  void LetGo() {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

// An exchange of which each partition calls from a stream of its own, or all from one. What comes before it on the
// stream writes the source; what comes after it overwrites source and destination, once they have been saved. So what
// is not ordered by the stream goes wrong.
class StreamedExchange final : public Exchange {
 public:
  StreamedExchange(std::shared_ptr<gpu::Gpu> gpu, std::shared_ptr<Exchange> exchange, int32_t partitions,
                   bool one_stream);
  ~StreamedExchange() override;

  // The completion is called when the device's stream has come to its end.
  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override;
  void FailGroup(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    exchange_->FailGroup(run_id, partition, why, std::move(done));
  }

  // From now on memory is got as calls beside XLA's computation get it, and given back when the handler would return.
  void UseCallMemory() { call_memory_ = true; }
  // What comes next on the partition's stream waits.
  void Compute(int32_t partition, const std::shared_ptr<Computation>& computation);
  // How many of the calls so far the exchange has put on their streams as a whole.
  int64_t enqueued() const { return *enqueued_; }

  // Of device memory, that a caller may still get; -1: any.
  void LimitMemory(int64_t bytes) { memory_ = bytes; }
  // The host lacks memory when a caller gets memory of its device for the so-many-th time; -1: never.
  void ThrowAt(int64_t allocation) { throw_at_ = allocation; }

 private:
  struct Call;

  const std::shared_ptr<gpu::Gpu> gpu_;
  const std::shared_ptr<Exchange> exchange_;
  std::vector<kernels::Stream> streams_;  // by partition
  std::vector<std::shared_ptr<Computation>> computations_;
  const std::shared_ptr<std::atomic<int64_t>> enqueued_ = std::make_shared<std::atomic<int64_t>>(0);
  const bool one_stream_;
  bool call_memory_ = false;
  int64_t memory_ = -1;
  int64_t throw_at_ = -1;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_GPU_RIG_H_
