// Declares the part of NCCL's interface that fastjax uses. RCCL has the same interface by the same names. It is
// declared by hand, from NCCL's documentation, so that fastjax is built without either library.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_API_H_
#define FASTJAX_BACKENDS_GPU_NCCL_API_H_

#include <climits>
#include <cstddef>

namespace fastjax::gpu::nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledGpuError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int { kInt8 = 0 };

using Comm = struct Opaque*;

struct UniqueId {
  char bytes[128];
};

// The struct is that of 2.18: the library takes what it does not find in it, by its size and version, for undefined.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21801;
  int blocking = INT_MIN;  // undefined
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  // Later ones have their traffic class where this one ends in padding, and 2.26 reads it there without a look at the
  // version: what happens to be in the padding would be InfiniBand's service level.
  int traffic_class = INT_MIN;
};
static_assert(sizeof(Config) == 48, "as NCCL 2.18 has it");

// X(what it returns, its name after "nccl", what it takes)
#define FASTJAX_NCCL_FUNCTIONS(X)                                                                     \
  X(Result, GetVersion, (int* version))                                                               \
  X(Result, GetUniqueId, (UniqueId * id))                                                             \
  X(Result, CommInitRankConfig, (Comm * comm, int ranks, UniqueId id, int rank, Config* config))      \
  X(Result, CommFinalize, (Comm comm))                                                                \
  X(Result, CommDestroy, (Comm comm))                                                                 \
  X(Result, CommAbort, (Comm comm))                                                                   \
  X(Result, CommGetAsyncError, (Comm comm, Result * error))                                           \
  X(Result, GroupStart, ())                                                                           \
  X(Result, GroupEnd, ())                                                                             \
  X(Result, Send, (const void* data, size_t count, DataType type, int peer, Comm comm, void* stream)) \
  X(Result, Recv, (void* data, size_t count, DataType type, int peer, Comm comm, void* stream))       \
  X(const char*, GetErrorString, (Result result))                                                     \
  X(const char*, GetLastError, (Comm comm))

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_API_H_
