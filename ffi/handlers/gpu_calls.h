// Declares what the handlers of GPU programs do between XLA and the backend, on all platforms alike.
#ifndef FASTJAX_HANDLERS_GPU_CALLS_H_
#define FASTJAX_HANDLERS_GPU_CALLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/fetch.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/backend.h"
#include "handlers/decode.h"
#include "handlers/exchange_buffers.h"
#include "handlers/operands.h"

namespace fastjax::handlers {

// Remembers which partition of a call site's program each device is. That never changes, so a device that has called
// before is known even when its partition id cannot be read any more. Thread-safe.
class Partitions {
 public:
  Partitions() {
    for (auto& partition : known_) partition.store(-1, std::memory_order_relaxed);
  }
  // `ordinal`: XLA's number of the device.
  void Remember(int32_t ordinal, int32_t partition) {
    if (IsKept(ordinal)) known_[static_cast<size_t>(ordinal)].store(partition, std::memory_order_relaxed);
  }
  // -1: not known.
  int32_t Recall(int32_t ordinal) const {
    return IsKept(ordinal) ? known_[static_cast<size_t>(ordinal)].load(std::memory_order_relaxed) : -1;
  }

 private:
  static constexpr int32_t kKept = 128;  // more devices than a process has
  static bool IsKept(int32_t ordinal) { return ordinal >= 0 && ordinal < kKept; }

  std::array<std::atomic<int32_t>, kKept> known_;
};

// The state that all call sites of GPU programs have. Each kind of handler has its own type, since XLA numbers types
// itself, and the plugin of a GPU contains another XLA.
struct GpuSite {
  HandedOver handed_over;
  OperandList operands;
  std::shared_ptr<const CallSite> site;
  std::shared_ptr<gpu::Gpu> gpu;
  Partitions partitions;
};

struct GpuExchangeSite : GpuSite {
  bool reverse = false;
  bool started = false;  // it goes on beside what follows, until a done of its result
  std::shared_ptr<fastjax::Exchange> exchange;
};

struct GpuPlanSite : GpuSite {
  std::shared_ptr<Counts> counts;  // where each rank has its device
  PlanFunction plan;               // where one device has all ranks,
  int32_t rank = 0;                // and the table of this one is wanted
  int64_t table_words = 0;
};

// Opens a call site. Without an operand `partition`, one device has all ranks of the topology.
ffi::Error OpenGpuExchange(const CallAttributes& attrs, GpuExchangeSite* state);
ffi::Error OpenGpuPlan(const CallAttributes& attrs, GpuPlanSite* state);

// Puts a copy of base on the caller's stream. XLA was asked to give result and base one buffer; it is free not to.
Status CopyBase(const gpu::Gpu& gpu, const gpu::Caller& caller, const ffi::AnyBuffer& base, std::byte* result);
// XLA runs a device's program on a thread whose current device it is, or says which it is: its ordinal.
Status FindDevice(const gpu::Gpu& gpu, int32_t ordinal, int32_t* device);

// Passes on the rows of an exchange that was started, in place or not, for what XLA puts on `stream` from now on.
Status PassRows(gpu::Gpu* gpu, const gpu::Caller& caller, const ffi::AnyBuffer& rows, const ffi::RemainingArgs& kept,
                const ffi::AnyBuffer& result);

// Puts a copy of a table, from pinned memory, on the caller's stream. From any thread.
Status CopyTable(const gpu::Gpu& gpu, const gpu::Caller& caller, const CallSite& site, const int32_t* words,
                 int32_t* table);

// One call of one device. Load waits for what the host must read from the device; Start ends with a completion, until
// which the object must live. A failure before Start is told to the devices of the group.

// Finds which partition, and so which position of its group, a device is.
class PartitionLookup {
 public:
  PartitionLookup(GpuSite* state, int32_t ordinal) : state_(*state), ordinal_(ordinal) {}

  // False if the operand is no partition id.
  bool Take(const ffi::AnyBuffer& partition);
  // Adds what is to be read from the device.
  const uint32_t** where() { return &here_; }
  // To be called when that has been read. False if it is no partition of the call site.
  bool Read();
  int32_t partition() const { return partition_; }
  // Returns the partition after a failure: from what is remembered, or else by a blocking copy. -1: it cannot be found.
  int32_t Find(const gpu::Caller& caller);

 private:
  int32_t ReadAlone(const gpu::Caller& caller) const;

  GpuSite& state_;
  const int32_t ordinal_;
  const void* there_ = nullptr;  // on the device
  const uint32_t* here_ = nullptr;
  int32_t partition_ = -1;
};

// One device's exchange.
class GpuExchangeCall {
 public:
  GpuExchangeCall(GpuExchangeSite* state, gpu::Caller caller, int32_t ordinal)
      : state_(*state), caller_(std::move(caller)), lookup_(state, ordinal), fetch_(state->gpu.get()) {}

  // Waits for offsets and sizes, and so for all that is before the exchange on XLA's stream.
  Status Load(const ExchangeBuffers& buffers);
  // `loaded`: the status of Load, or of what came before it.
  void Start(int64_t run_id, const Status& loaded, Completion done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  Status GoBeside(const ExchangeBuffers& buffers);

  GpuExchangeSite& state_;
  const gpu::Caller caller_;  // XLA's stream
  PartitionLookup lookup_;
  gpu::Fetch fetch_;
  ExchangeArgs args_;
  // Of an exchange that is started.
  std::optional<gpu::CallMemory> memory_;
  gpu::Caller beside_;
  const void* rows_ = nullptr;  // that are in flight, if there are any
  gpu::Flight flight_;
};

// One device's planning.
class GpuPlanCall final : TableTaker {
 public:
  GpuPlanCall(GpuPlanSite* state, gpu::Caller caller, int32_t ordinal)
      : state_(*state), caller_(std::move(caller)), lookup_(state, ordinal), fetch_(state->gpu.get()) {}

  // Waits for the sizes.
  Status Load(const PlanBuffers& buffers);
  void Start(int64_t run_id, const Status& loaded, Completion done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  // Puts the copy of the table to the device on the caller's stream.
  Status TakeTable() override;

  GpuPlanSite& state_;
  const gpu::Caller caller_;
  PartitionLookup lookup_;
  gpu::Fetch fetch_;
  CountsArgs args_;
  int32_t* table_ = nullptr;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_CALLS_H_
