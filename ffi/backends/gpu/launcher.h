// Declares Launcher, which puts pipeline steps on streams. No function here waits for a device.
#ifndef FASTJAX_BACKENDS_GPU_LAUNCHER_H_
#define FASTJAX_BACKENDS_GPU_LAUNCHER_H_

#include <cstdint>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/launch_schedule.h"
#include "backends/gpu/nccl/fabric.h"

namespace fastjax::gpu {

class Launcher {
 public:
  explicit Launcher(Gpu* gpu) : gpu_(gpu) {}

  // When it returns, all has been put on the callers' streams, or on others that these wait for. `channel` may be null
  // where there are no messages. What fails half-way, or throws, leaves nothing of it on the streams; some rows may
  // have moved.
  Status Launch(const LaunchSchedule& schedule, const Layout& layout, nccl::Channel* channel);

 private:
  // What a call has besides its stream.
  struct CallResources {
    const Caller* caller;
    kernels::Stream side;  // messages go on it
    kernels::Event event;
    int32_t blocks;
    Kept pinned;                 // its lists, on the host
    const kernels::Move* moves;  // and on the device; null: launches take them along
    const kernels::Gather* gathers;
    const kernels::Slice* slices;
    const int32_t* starts;  // null: sums have lists of the device's
    const int32_t* entries;
  };

  Status Put(const LaunchSchedule& schedule, const Layout& layout, nccl::Channel* channel);
  Status Prepare(const Layout& layout);
  Status Upload(const LaunchSchedule& schedule, int32_t call);
  Status LaunchStep(const LaunchSchedule& schedule, int32_t pipeline_step, nccl::Channel* channel);
  template <typename LaunchKernel>
  Status Start(const CallResources& call, LaunchKernel launch);
  Status Run(const LaunchSchedule& schedule, int32_t call, const MoveList& list, kernels::Stream stream);
  Status Gather(const LaunchSchedule& schedule, int32_t call, const MoveList& list);
  Status Sum(const LaunchSchedule& schedule, int32_t call);
  Status Join();
  Status Follow(const CallResources& call, kernels::Stream first, kernels::Stream then);
  Status Record(const CallResources& call, kernels::Stream stream, DeviceScope* scope);
  Status Wait(const CallResources& call, kernels::Stream stream, const CallResources& other);
  Status MoveMessages(const LaunchSchedule& schedule, int32_t pipeline_step, nccl::Channel* channel);
  int32_t BlocksFor(const CallResources& call, int64_t bytes) const;
  void Settle();
  void Clear();

  Gpu* const gpu_;
  Tally tally_;  // of this exchange
  std::vector<CallResources> calls_;
  std::vector<uint8_t> talks_;  // by call: has messages in this pipeline step
  std::vector<kernels::Stream> sides_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_LAUNCHER_H_
