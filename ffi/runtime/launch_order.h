// Declares NextLaunch, which numbers the launches of this process.
#ifndef FASTJAX_RUNTIME_LAUNCH_ORDER_H_
#define FASTJAX_RUNTIME_LAUNCH_ORDER_H_

#include <atomic>
#include <cstdint>

namespace fastjax {

// Called when the devices of this process have met for an exchange or a planning; returns its number, from 0. A
// launch of a lower number goes first wherever several compete for a NIC or a thread (docs/design/overview.md).
inline int64_t NextLaunch() {
  static std::atomic<int64_t> begun{0};
  return begun.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_LAUNCH_ORDER_H_
