// Declares Tally: counters of what exchanges have put on streams.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_TALLY_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_TALLY_H_

#include <cstdint>

namespace fastjax::gpu {

struct Tally {
  int64_t exchanges = 0;
  int64_t kernels = 0;   // launches that move or add up rows
  int64_t messages = 0;  // that devices here send to those whose memory they cannot reach
  // Bytes. What is packed, sent and unpacked counts three times.
  int64_t packed = 0;
  int64_t sent = 0;
  int64_t copied = 0;  // straight from one device's memory to another's
  int64_t unpacked = 0;
  int64_t summed = 0;  // that are the result of sums
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_TALLY_H_
