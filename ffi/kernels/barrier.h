// A barrier of the devices of several processes, passed by streams: each device writes how far it is to a page of host
// memory that all of them see, and waits for the others.
#ifndef FASTJAX_KERNELS_BARRIER_H_
#define FASTJAX_KERNELS_BARRIER_H_

#include <cstdint>

#include "kernels/worker.h"

#if !defined(__HIP_DEVICE_COMPILE__) && !defined(__CUDA_ARCH__)
#include <chrono>
#include <thread>
#endif

namespace fastjax::kernels {

// A page's words that somebody polls have lines of caches to themselves. The first line's word says whether it is
// closed: nobody waits any more, and no rows move. Each device has two lines: how far it is, and whether it is let go.
struct BarrierLine {
  uint64_t word;
  uint64_t unused[15];
};
static_assert(sizeof(BarrierLine) == 128);

FASTJAX_DEVICE inline int64_t BarrierLines(int32_t devices) { return 1 + 2 * static_cast<int64_t>(devices); }
FASTJAX_DEVICE inline int64_t StepLine(int32_t device) { return 1 + 2 * static_cast<int64_t>(device); }
FASTJAX_DEVICE inline int64_t LetGoLine(int32_t device) { return 2 + 2 * static_cast<int64_t>(device); }

// One device's passage. It waits for all devices but those in [first_here, first_here + here).
struct Barrier {
  BarrierLine* page;  // as this device sees it
  int32_t devices;
  int32_t device;
  int32_t first_here;
  int32_t here;
  uint64_t step;
  bool last;       // ends when the device is let go, where others end when the page is closed
  uint64_t* gate;  // of the device's memory: 0 if the page was open when it came; null: nobody asks
};

// What the barrier before said.
FASTJAX_DEVICE inline bool IsOpen(const uint64_t* gate) { return gate == nullptr || *gate == 0; }

// Between all devices and processors of a host. What a thread, or what its stream did before it, wrote before a store
// is seen by whoever loads what was stored; and what a thread loads after a store was not loaded before it.
FASTJAX_DEVICE inline uint64_t LoadShared(const uint64_t* at) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#elif defined(__CUDA_ARCH__)
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
#endif
}

FASTJAX_DEVICE inline void StoreShared(uint64_t* at, uint64_t value) {
#if defined(__HIP_DEVICE_COMPILE__)
  __hip_atomic_store(at, value, __ATOMIC_SEQ_CST, __HIP_MEMORY_SCOPE_SYSTEM);
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
#elif defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
  asm volatile("fence.sc.sys;" ::: "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
#endif
}

// Between two looks.
FASTJAX_DEVICE inline void PauseShortly() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_s_sleep(8);
#elif defined(__CUDA_ARCH__)
  __nanosleep(200);
#else
  std::this_thread::sleep_for(std::chrono::microseconds(20));
#endif
}

// All threads of the calling warp have come here, and see what each other did before. As C++, they run one after the
// other, and the last knows what all did.
FASTJAX_DEVICE inline void JoinWarp() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
#elif defined(__CUDA_ARCH__)
  __syncwarp();
  asm volatile("fence.sc.sys;" ::: "memory");
#endif
}

// The first warp passes the barrier; its threads share the devices. They look at the page after they have told the
// step, and when all have what they waited for: who closes the page sees the step of this device, or this device sees
// that it is closed.
FASTJAX_DEVICE inline void PassBarrier(const Worker& worker, const Barrier& barrier) {
  if (worker.warp != 0) return;
  if (worker.thread == 0) StoreShared(&barrier.page[StepLine(barrier.device)].word, barrier.step);
  const uint64_t* const end = &barrier.page[barrier.last ? LetGoLine(barrier.device) : 0].word;
  for (int32_t device = worker.thread; device < barrier.devices; device += worker.threads) {
    if (device >= barrier.first_here && device < barrier.first_here + barrier.here) continue;
    while (LoadShared(&barrier.page[StepLine(device)].word) < barrier.step && LoadShared(end) == 0) PauseShortly();
  }
  JoinWarp();
  if (worker.thread == worker.threads - 1 && barrier.gate != nullptr) *barrier.gate = LoadShared(&barrier.page->word);
}

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_BARRIER_H_
