// What we declare of NCCL's interface (api.h) against the header of a release: compiled with FASTJAX_NCCL_INCLUDE_DIRS,
// never run. Names stand for values here: an enumerator that moves, a field or a parameter that changes does not
// compile.
#include <nccl.h>

#include <climits>
#include <cstddef>
#include <type_traits>

#include "backends/gpu/nccl/api.h"

namespace fastjax::gpu::nccl {
namespace {

#define SAME_VALUE(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
SAME_VALUE(kSuccess, ncclSuccess);
SAME_VALUE(kUnhandledGpuError, ncclUnhandledCudaError);
SAME_VALUE(kSystemError, ncclSystemError);
SAME_VALUE(kInternalError, ncclInternalError);
SAME_VALUE(kInvalidArgument, ncclInvalidArgument);
SAME_VALUE(kInvalidUsage, ncclInvalidUsage);
SAME_VALUE(kRemoteError, ncclRemoteError);
SAME_VALUE(kInProgress, ncclInProgress);
SAME_VALUE(kInt8, ncclInt8);
static_assert(sizeof(Result) == sizeof(ncclResult_t) && sizeof(DataType) == sizeof(ncclDataType_t), "enums");

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId), "ids");
static_assert(std::is_trivially_copyable_v<UniqueId> && std::is_trivially_copyable_v<ncclUniqueId>, "passed alike");

#define SAME_FIELD(ours, theirs)                                                            \
  static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs) &&                 \
                    std::is_same_v<decltype(Config::ours), decltype(ncclConfig_t::theirs)>, \
                #theirs)
SAME_FIELD(size, size);
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(cga_cluster_size, cgaClusterSize);
SAME_FIELD(min_ctas, minCTAs);
SAME_FIELD(max_ctas, maxCTAs);
SAME_FIELD(net_name, netName);
SAME_FIELD(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
SAME_FIELD(traffic_class, trafficClass);
#endif
static_assert(sizeof(Config) <= sizeof(ncclConfig_t) && alignof(Config) == alignof(ncclConfig_t), "config");
constexpr Config kOurs;
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kOurs.magic == kTheirs.magic, "magic");
static_assert(kOurs.version <= kTheirs.version, "version");
static_assert(kOurs.net_name == kTheirs.netName && NCCL_CONFIG_UNDEF_INT == INT_MIN, "undefined");

// Their type as ours.
template <typename T>
struct OursOf {
  using Type = T;
};
template <typename T>
struct OursOf<T*> {
  using Type = typename OursOf<T>::Type*;
};
#define OURS_OF(theirs, ours) \
  template <>                 \
  struct OursOf<theirs> {     \
    using Type = ours;        \
  }
OURS_OF(ncclResult_t, Result);
OURS_OF(ncclDataType_t, DataType);
OURS_OF(ncclUniqueId, UniqueId);
OURS_OF(ncclConfig_t, Config);
OURS_OF(ncclComm_t, Comm);
OURS_OF(cudaStream_t, void*);
template <typename R, typename... Arguments>
struct OursOf<R(Arguments...)> {
  using Type = typename OursOf<R>::Type(typename OursOf<Arguments>::Type...);
};

#define SAME_FUNCTION(type, function, arguments) \
  static_assert(std::is_same_v<OursOf<decltype(::nccl##function)>::Type, type arguments>, #function);
FASTJAX_NCCL_FUNCTIONS(SAME_FUNCTION)

}  // namespace
}  // namespace fastjax::gpu::nccl
