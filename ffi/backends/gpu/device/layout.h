// Declares Layout: which devices of a group are this process's, and which reach each other's memory; and Fabric: what
// lies between those that do not.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/backend.h"
#include "exchange/status.h"
#include "kernels/driver.h"

namespace fastjax::gpu {

// A call is a stream: that of one device, or, where one device executes several ranks, of all of them.
struct Layout {
  std::vector<int32_t> domain_of;  // by rank: devices of one domain reach each other's memory
  std::vector<int32_t> call_of;    // by rank: -1 where a device is another process's
  std::vector<const Caller*> calls;
};

// The calls of the devices here, `args` by position.
void FindCalls(const CallSite& site, const std::vector<ExchangeArgs>& args, Layout* layout);

// Bytes that lie in one range, at the end that is here.
struct MessageEnd {
  bool sends;
  int32_t here;  // rank
  int32_t peer;  // rank
  int32_t call;  // here's
  std::byte* data;
  int64_t bytes;
  int32_t pipeline_step;
};

// Moves messages between devices that cannot reach each other's memory.
class Channel {
 public:
  virtual ~Channel() = default;
  // Puts messages, which move together, on the streams of their calls. Both ends list those from one device to another
  // in the same order, in groups that agree.
  virtual Status Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams) = 0;
};

// What lies between devices.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Completes a layout that has its calls with domains.
  virtual Status FindDomains(const CallSite& site, Layout* layout) = 0;
  // What moves messages between devices of a group that are in different domains. `channel` is what it gave to the
  // call site for this group before, or null; the call site keeps it as long as it may have exchanges.
  virtual Status ChannelOf(const CallSite& site, int32_t group, const Layout& layout,
                           std::shared_ptr<Channel>* channel) = 0;
};

// One GPU executes all ranks of a plan: kernels and stages are real, and a kernel moves the messages. Servers of so
// many devices are domains.
class LoopbackFabric final : public Fabric {
 public:
  explicit LoopbackFabric(int32_t devices_per_server) : devices_per_server_(devices_per_server) {}
  Status FindDomains(const CallSite& site, Layout* layout) override;
  // There is none: all ranks are on one stream.
  Status ChannelOf(const CallSite& site, int32_t group, const Layout& layout,
                   std::shared_ptr<Channel>* channel) override;

 private:
  const int32_t devices_per_server_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_
