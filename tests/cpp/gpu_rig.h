// Devices of the emulated GPU that exchange rows as XLA has them do it: on streams that have work before the exchange,
// and after.
#ifndef FASTJAX_TESTS_CPP_GPU_RIG_H_
#define FASTJAX_TESTS_CPP_GPU_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/driver.h"
#include "transport/gpu/caller.h"
#include "transport/gpu/gpu.h"
#include "transport/transport.h"

namespace fastjax::test {

// The driver of the emulated GPU, of which calls can be made to fail.
class FaultyDriver {
 public:
  FaultyDriver();
  const kernels::Driver* get() const { return &driver_; }

  // The call after `calls` more fails, of those that put something on a stream or make something; -1: none.
  static void FailAfter(int64_t calls);
  // Puts an end to that; returns whether a call has failed.
  static bool Stop();

 private:
  kernels::Driver driver_;
};

// An exchange of which each partition calls from a stream of its own, or all from one. What comes before it on the
// stream writes the source; what comes after it overwrites source and destination, once they have been saved. So what
// is not ordered by the stream goes wrong.
class StreamedExchange final : public transport::Exchange {
 public:
  StreamedExchange(std::shared_ptr<transport::gpu::Gpu> gpu, std::unique_ptr<transport::Exchange> exchange,
                   int32_t partitions, bool one_stream);
  ~StreamedExchange() override;

  // The completion is called when the device's stream has come to its end.
  void Start(int64_t run_id, int32_t partition, transport::ExchangeArgs args, transport::Completion done) override;

  // Of device memory, that a caller may still get; -1: any.
  void LimitMemory(int64_t bytes) { memory_ = bytes; }
  // The host lacks memory when a caller gets memory of its device for the so-many-th time; -1: never.
  void ThrowAt(int64_t allocation) { throw_at_ = allocation; }

 private:
  struct Call;

  const std::shared_ptr<transport::gpu::Gpu> gpu_;
  const std::unique_ptr<transport::Exchange> exchange_;
  std::vector<kernels::Stream> streams_;  // by partition
  const bool one_stream_;
  int64_t memory_ = -1;
  int64_t throw_at_ = -1;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_GPU_RIG_H_
