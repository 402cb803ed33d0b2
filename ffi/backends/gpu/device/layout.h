// Declares Layout: which devices of a group are this process's, and which reach each other's memory; and what others
// send each other.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/device/caller.h"
#include "exchange/operation.h"

namespace fastjax::gpu {

// A call is a stream: that of one device, or, where one device executes several ranks, of all of them.
struct Layout {
  std::vector<int32_t> domain_of;  // by rank: devices of one domain reach each other's memory
  std::vector<int32_t> call_of;    // by rank: -1 where a device is another process's
  std::vector<const Caller*> calls;
};

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

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_LAYOUT_H_
