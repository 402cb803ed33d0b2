// Declares NextLaunch, which numbers the launches of this process.
#ifndef FASTJAX_RUNTIME_LAUNCH_ORDER_H_
#define FASTJAX_RUNTIME_LAUNCH_ORDER_H_

#include <atomic>
#include <cstdint>

#include "runtime/process_state.h"

namespace fastjax {

struct LaunchesStarted {
  std::atomic<int64_t> count{0};
};

// Called when the devices of this process have met for an exchange or a planning; returns its number, from 0. A
// launch of a lower number goes first wherever several compete for a NIC or a thread (docs/design/overview.md).
inline int64_t NextLaunch() { return ProcessState<LaunchesStarted>().count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_LAUNCH_ORDER_H_
