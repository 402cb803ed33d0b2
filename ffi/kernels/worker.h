// Who runs a part of a kernel, and how it touches memory: the part of a vendor that the kernels' arithmetic needs.
#ifndef FASTJAX_KERNELS_WORKER_H_
#define FASTJAX_KERNELS_WORKER_H_

#if defined(__HIP__)
#include <hip/hip_runtime.h>  // before all that calls memcpy: it declares the one for devices
#endif

#include <cstddef>
#include <cstdint>

#if defined(__HIP__) || defined(__CUDACC__)
#define FASTJAX_DEVICE __host__ __device__
#else
#define FASTJAX_DEVICE
#endif

// Before a loop whose arrays are to be registers, which compilers for GPUs do not unroll of themselves if it is long.
#if defined(__HIP_DEVICE_COMPILE__) || defined(__CUDA_ARCH__)
#define FASTJAX_UNROLL _Pragma("unroll")
#else
#define FASTJAX_UNROLL
#endif

namespace fastjax::kernels {

constexpr int32_t kBlockThreads = 256;
// So many a multiprocessor holds at once: the kernels' registers allow no more.
constexpr int32_t kMultiprocessorThreads = 1024;

// One thread of a warp. Warps share work; the threads of one share a tile of it.
struct Worker {
  int64_t warp;
  int64_t warps;
  int32_t thread;
  int32_t threads;
};

// What a thread moves at once.
struct alignas(16) Word16 {
  uint64_t low;
  uint64_t high;
};

// Rows are read once and written once: neither end is worth keeping in a cache.
#if defined(__HIP_DEVICE_COMPILE__)
using Vector16 = uint64_t __attribute__((ext_vector_type(2)));

FASTJAX_DEVICE inline Word16 LoadOnce(const Word16* at) {
  const Vector16 word = __builtin_nontemporal_load(reinterpret_cast<const Vector16*>(at));
  return {word.x, word.y};
}

FASTJAX_DEVICE inline void StoreOnce(Word16* at, Word16 word) {
  const Vector16 vector = {word.low, word.high};
  __builtin_nontemporal_store(vector, reinterpret_cast<Vector16*>(at));
}
#elif defined(__CUDA_ARCH__)
FASTJAX_DEVICE inline Word16 LoadOnce(const Word16* at) {
  const ulonglong2 word = __ldcs(reinterpret_cast<const ulonglong2*>(at));
  return {word.x, word.y};
}

FASTJAX_DEVICE inline void StoreOnce(Word16* at, Word16 word) {
  __stcs(reinterpret_cast<ulonglong2*>(at), make_ulonglong2(word.low, word.high));
}
#else
FASTJAX_DEVICE inline Word16 LoadOnce(const Word16* at) { return *at; }
FASTJAX_DEVICE inline void StoreOnce(Word16* at, Word16 word) { *at = word; }
#endif

}  // namespace fastjax::kernels

#endif  // FASTJAX_KERNELS_WORKER_H_
