// Declares what the handlers of GPU programs do between XLA and the backend, on all platforms alike.
#ifndef FASTJAX_HANDLERS_GPU_CALLS_H_
#define FASTJAX_HANDLERS_GPU_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/fetch.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/operation.h"
#include "handlers/decode.h"

namespace fastjax::handlers {

// Remembers which partition of a call site's program each device is. That never changes, so a device that has called
// before is known even when its partition id cannot be read any more. Thread-safe.
class Partitions {
 public:
  // `ordinal`: XLA's number of the device.
  void Remember(int32_t ordinal, int32_t partition) {
    const std::lock_guard<std::mutex> lock(mutex_);
    known_[ordinal] = partition;
  }
  // -1: not known.
  int32_t Recall(int32_t ordinal) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find(ordinal);
    return found == known_.end() ? -1 : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<int32_t, int32_t> known_;
};

// The state that all call sites of GPU programs have. Its kinds are types of their own to XLA, even where a CPU handler
// has them too, since XLA numbers types itself, and the plugin of a GPU contains another XLA.
struct GpuSite : SiteState {
  // Whether one device executes all ranks: then arrays have a leading dimension of ranks.
  bool all_ranks_here() const { return !operands.Has(Operand::kPartition); }

  std::shared_ptr<const CallSite> site;
  std::shared_ptr<gpu::Gpu> gpu;
  Partitions partitions;
};

class GpuExchangeCall;
class GpuPlanCall;

struct GpuExchangeSite : GpuSite {
  using Call = GpuExchangeCall;
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_gpu_exchange_site_v2";

  bool reverse = false;
  bool started = false;  // it goes on beside what follows, until a done of its result
  std::shared_ptr<fastjax::Exchange> exchange;
};

struct GpuPlanSite : GpuSite {
  using Call = GpuPlanCall;
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_gpu_plan_site_v2";

  std::shared_ptr<Counts> counts;  // where each rank has its device
  PlanFunction plan;               // where one device has all ranks,
  int32_t rank = 0;                // and the table of this one is wanted
  int64_t table_words = 0;
};

// Opens a call site.
ffi::Error OpenGpuExchange(const CallAttributes& attrs, GpuExchangeSite* state);
ffi::Error OpenGpuPlan(const CallAttributes& attrs, GpuPlanSite* state);

// Puts a copy of base on the caller's stream. XLA was asked to give result and base one buffer; it is free not to.
Status CopyBase(const gpu::Gpu& gpu, const gpu::Caller& caller, const ffi::AnyBuffer& base, std::byte* result);
// XLA runs a device's program on a thread whose current device it is, or says which it is: its ordinal.
Status FindDevice(const gpu::Gpu& gpu, int32_t ordinal, int32_t* device);

// Passes on the rows of an exchange that was started, in place or not, for what XLA puts on `stream` from now on.
Status PassRows(gpu::Gpu* gpu, const gpu::Caller& caller, const ffi::AnyBuffer& rows, const ffi::RemainingArgs& kept,
                const ffi::AnyBuffer& result);

// One call of one device. Load waits for what the host must read from the device; Start ends with a completion, until
// which the object must live. If there is one device for all ranks, these meet each other only: other devices may
// execute the same call site in the same run.
class GpuCall {
 public:
  GpuCall(GpuSite* site, gpu::Caller caller, int32_t ordinal)
      : caller_(std::move(caller)), fetch_(site->gpu.get()), site_(*site), ordinal_(ordinal) {}
  const gpu::Caller& caller() const { return caller_; }

 protected:
  // Adds the device's number in the program, if there is one, to what is fetched. False if the operand is none.
  bool TakePartition(const Buffers& buffers);
  // Waits until all is here.
  Status FetchAll();
  int32_t partition() const { return partition_; }
  // Tells a failure before Start to the devices of the group.
  template <typename Args>
  void Fail(Operation<Args>* group, int64_t run_id, const Status& why, Completion done) {
    if (site_.all_ranks_here()) return done({why.code, site_.site->Prefix() + why.message});
    const int32_t partition = FindPartition();
    if (partition < 0) return done(FailsAlone(*site_.site, why));
    group->FailGroup(run_id, partition, why, std::move(done));
  }

  const gpu::Caller caller_;  // XLA's stream
  gpu::Fetch fetch_;

 private:
  int32_t FindPartition();
  int32_t ReadPartition() const;

  GpuSite& site_;
  const int32_t ordinal_;
  const void* there_ = nullptr;  // the number, on the device
  const uint32_t* here_ = nullptr;
  int32_t partition_ = -1;
};

// One device's exchange.
class GpuExchangeCall final : public GpuCall {
 public:
  GpuExchangeCall(GpuExchangeSite* state, gpu::Caller caller, int32_t ordinal)
      : GpuCall(state, std::move(caller), ordinal), state_(*state) {}

  // Waits for offsets and sizes, and so for all that is before the exchange on XLA's stream.
  Status Load(const Buffers& buffers);
  // `loaded`: the status of Load, or of what came before it.
  void Start(int64_t run_id, const Status& loaded, Completion done);

 private:
  Status GoBeside(const Buffers& buffers);
  void StartRanks(int64_t run_id, Completion done);
  ExchangeArgs ArgsOf(int32_t position) const;

  const GpuExchangeSite& state_;
  ExchangeArgs args_;  // where one device has all ranks, of rank 0; those of the others lie behind them
  // Of an exchange that is started.
  std::optional<gpu::CallMemory> memory_;
  gpu::Caller beside_;
  const void* rows_ = nullptr;  // that are in flight, if there are any
  gpu::Flight flight_;
};

// One device's planning.
class GpuPlanCall final : public GpuCall {
 public:
  GpuPlanCall(GpuPlanSite* state, gpu::Caller caller, int32_t ordinal)
      : GpuCall(state, std::move(caller), ordinal), state_(*state) {}

  // Waits for the sizes.
  Status Load(const Buffers& buffers);
  void Start(int64_t run_id, const Status& loaded, Completion done);

 private:
  Status PlanForAll();
  // Puts a copy of the table, of which pinned memory has the words, on the caller's stream.
  Status TakeTable();

  const GpuPlanSite& state_;
  CountsArgs args_;
  int32_t* table_ = nullptr;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_CALLS_H_
