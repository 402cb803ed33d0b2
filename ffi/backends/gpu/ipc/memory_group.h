// Declares MemoryGroup: the processes of one host whose devices share memory, for one group of a call site. It knows
// how far each device is and who waits for whom, and ends the group when one does not come.
#ifndef FASTJAX_BACKENDS_GPU_IPC_MEMORY_GROUP_H_
#define FASTJAX_BACKENDS_GPU_IPC_MEMORY_GROUP_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/report.h"
#include "backends/gpu/ipc/barrier_page.h"
#include "exchange/status.h"
#include "kernels/barrier.h"
#include "runtime/watchdog.h"

namespace fastjax::gpu::ipc {

// Barriers of exchange n have the steps from n * kSteps + 1 to its last one, n * kSteps + kLastStep.
constexpr uint64_t kSteps = uint64_t{1} << 14;
constexpr uint64_t kLastStep = kSteps - 1;

// A device of a memory group. Devices are numbered by their lines on the page; those of a process follow each other.
struct GroupDevice {
  int32_t rank;
  int32_t device;  // the driver's number; -1 where it is another process's
};

// Thread-safe. All exchanges of a memory group are launched in the same order in all of its processes. When one of
// these gives it up, all do, and it is done with.
class MemoryGroup final : public Expirable, public std::enable_shared_from_this<MemoryGroup> {
 public:
  static Status Make(std::shared_ptr<Gpu> gpu, std::shared_ptr<Report> report, std::unique_ptr<BarrierPage> page,
                     const std::vector<GroupDevice>& devices, std::shared_ptr<MemoryGroup>* memory_group);
  ~MemoryGroup() override;

  // Barriers of this process's devices, in the order of their lines, all but the step.
  const std::vector<kernels::Barrier>& barriers() const { return barriers_; }
  // Everybody has the page.
  void Unlink() { page_->Unlink(); }
  // Whether nobody has given it up. What somebody's giving up means for exchanges here has been told to the report.
  bool IsWhole();

  // The next exchange: its steps follow `*step`. It will be launched or given up.
  void Begin(uint64_t* step);
  // All of it is on these streams, in the order of the lines. Fails if somebody has given up the memory group
  // meanwhile.
  Status Launched(const std::vector<kernels::Stream>& streams);
  // For an exchange that does not take place, here or elsewhere. To be called first: from then on nobody waits for
  // others, except in the last step of what has begun.
  void Close();
  // Then, when streams have come to the end of what was put on them, nobody waits for devices here either.
  void Withdraw(uint64_t step);
  // To be called in the end: gives up all of it, wherever the exchange has come to. Returns when nobody touches memory
  // of this process any more.
  void GiveUp();

  bool Expire(std::chrono::steady_clock::time_point now) override;

 private:
  using Clock = std::chrono::steady_clock;

  MemoryGroup(std::shared_ptr<Gpu> gpu, std::shared_ptr<Report> report, std::unique_ptr<BarrierPage> page,
              const std::vector<GroupDevice>& devices);

  uint64_t StepOf(size_t line) const;
  bool IsHere(size_t line) const { return devices_[line].device >= 0; }
  void Reap();
  void Fail(const Status& why, bool told);
  Status FindFault(Clock::time_point now);
  std::string LateText() const;
  bool IsQuiet() const;
  void LetGo();
  bool StreamsHavePassed() const;
  Clock::duration limit() const { return std::chrono::milliseconds(report_->site().timeout_ms); }

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Report> report_;
  std::shared_ptr<BarrierPage> page_;
  const std::vector<GroupDevice> devices_;
  std::vector<kernels::Barrier> barriers_;
  std::vector<int32_t> own_;            // devices
  std::vector<kernels::Event> passed_;  // the last exchange, by own device

  mutable std::mutex mutex_;
  uint64_t begun_ = 0;     // exchanges
  uint64_t launched_ = 0;  // those that are on streams
  uint64_t landed_ = 0;    // exchanges [landed_, launched_) may be in flight
  Status failure_;
  bool let_go_ = false;
  Clock::time_point failed_at_;
  uint64_t watched_ = 0;  // the step that all devices here have come to
  Clock::time_point since_;
  std::shared_ptr<MemoryGroup> kept_;  // itself, while streams may come to its barriers
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_MEMORY_GROUP_H_
