// Declares what the handlers of GPU programs do between XLA and the backend, on all platforms alike.
#ifndef FASTJAX_HANDLERS_GPU_CALLS_H_
#define FASTJAX_HANDLERS_GPU_CALLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/fetch.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/backend.h"
#include "handlers/decode.h"
#include "handlers/exchange_buffers.h"
#include "handlers/operands.h"

namespace fastjax::handlers {

// The partitions that devices are in a call site's program. They never change, so whoever has been here before knows
// his, also when he cannot read it any more. Thread-safe.
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

// What the call sites of GPU programs have. Each kind of handler derives a type of its own, since XLA's numbers of
// types are those of one XLA, and a GPU's plugin has an XLA of its own.
struct GpuSite {
  HandedOver handed_over;
  std::shared_ptr<const CallSite> site;
  std::shared_ptr<gpu::Gpu> gpu;
  Partitions partitions;
};

struct GpuExchangeSite : GpuSite {
  std::unique_ptr<fastjax::Exchange> exchange;
};

struct GpuPlanSite : GpuSite {
  std::unique_ptr<Counts> counts;
  int64_t table_words = 0;
};

// Who plays the ranks of a call: a device each, or one device all of those of the attribute topology.
enum class Players : uint8_t { kAllDevices, kOneDevice };

// Finds the site's GPUs, and the backend that moves its rows.
ffi::Error OpenGpuSite(const CallAttributes& attrs, Players players, GpuSite* state, std::shared_ptr<Backend>* backend);
ffi::Error OpenGpuExchange(const CallAttributes& attrs, GpuExchangeSite* state);
ffi::Error OpenGpuPlanExchange(const CallAttributes& attrs, GpuExchangeSite* state);
// `plans`: the exchange plans itself.
ffi::Error OpenExchange(const CallAttributes& attrs, Players players, bool plans, GpuExchangeSite* state);
ffi::Error OpenGpuPlan(const CallAttributes& attrs, GpuPlanSite* state);

// Puts a copy of base on the caller's stream. XLA was asked to give result and base one buffer; it is free not to.
Status CopyBase(const gpu::Gpu& gpu, const gpu::Caller& caller, const ffi::AnyBuffer& base, std::byte* result);
// Puts a copy of a table, from pinned memory, on the caller's stream. From any thread.
Status CopyTable(const gpu::Gpu& gpu, const gpu::Caller& caller, const CallSite& site, const int32_t* words,
                 int32_t* table);

// One call of a device: loaded, which waits for what must be read of the device, and started, which ends with a
// completion. It must live until then. What goes wrong before it is started is told to those that it would have met.

// Which of its group a device is.
class Attendance {
 public:
  Attendance(GpuSite* state, int32_t ordinal) : state_(*state), ordinal_(ordinal) {}

  // False: the operand is none.
  bool Take(const ffi::AnyBuffer& partition);
  // What is to be read of the device.
  const uint32_t** where() { return &here_; }
  // That has been read. False: it is none of the call site's.
  bool Read();
  int32_t partition() const { return partition_; }
  // Whatever has failed: from what is known, or else with nothing but a copy. -1: there is no way.
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
      : state_(*state), caller_(std::move(caller)), attendance_(state, ordinal), fetch_(state->gpu.get()) {}

  // Waits for offsets and sizes.
  Status Load(const ExchangeBuffers& buffers);
  // `loaded`: what came of that, or of what was to be done before.
  void Start(int64_t run_id, const Status& loaded, Completion done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  GpuExchangeSite& state_;
  const gpu::Caller caller_;
  Attendance attendance_;
  gpu::Fetch fetch_;
  ExchangeArgs args_;
};

// One device's planning.
class GpuPlanCall final : TableTaker {
 public:
  GpuPlanCall(GpuPlanSite* state, gpu::Caller caller, int32_t ordinal)
      : state_(*state), caller_(std::move(caller)), attendance_(state, ordinal), fetch_(state->gpu.get()) {}

  // Waits for the sizes.
  Status Load(const PlanBuffers& buffers);
  void Start(int64_t run_id, const Status& loaded, Completion done);
  const gpu::Caller& caller() const { return caller_; }

 private:
  // Puts the copy of the table to the device on the caller's stream.
  Status TakeTable() override;

  GpuPlanSite& state_;
  const gpu::Caller caller_;
  Attendance attendance_;
  gpu::Fetch fetch_;
  CountsArgs args_;
  int32_t* table_ = nullptr;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_CALLS_H_
