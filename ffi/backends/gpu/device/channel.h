// Declares Channel, which moves messages between devices that cannot reach each other's memory.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_CHANNEL_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/status.h"
#include "kernels/driver.h"

namespace fastjax::gpu {

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

class Channel {
 public:
  virtual ~Channel() = default;
  // Puts messages, which move together, on the streams of their calls. Both ends list those from one device to another
  // in the same order, in groups that agree.
  virtual Status Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams) = 0;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_CHANNEL_H_
