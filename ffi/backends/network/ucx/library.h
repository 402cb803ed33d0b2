// Loads UCX at run time: fastjax neither needs it to be installed nor connections against it.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_LIBRARY_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_LIBRARY_H_

#include <ucp/api/ucp.h>

#include <string>

namespace fastjax::network::ucx {

// The oldest UCX release that has all functions that are used. The newest of them names the transports of an endpoint.
constexpr unsigned kOldestMajor = 1;
constexpr unsigned kOldestMinor = 13;

#define FASTJAX_UCX_FUNCTIONS(X)    \
  X(ucp_get_version)                \
  X(ucp_get_version_string)         \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_query)               \
  X(ucp_worker_release_address)     \
  X(ucp_worker_progress)            \
  X(ucp_worker_arm)                 \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_am_send_nbx)                \
  X(ucp_am_data_release)            \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_ep_query)                   \
  X(ucp_request_free)               \
  X(ucs_status_string)

struct Library {
  std::string path;     // as it was found
  std::string version;  // as it calls itself
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is a name
#define FASTJAX_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  FASTJAX_UCX_FUNCTIONS(FASTJAX_UCX_MEMBER)
#undef FASTJAX_UCX_MEMBER
};

// Loads libucp by its path or name, once; it stays loaded until the process ends. Returns null, with the reason, if
// that fails. Thread-safe.
const Library* Load(const std::string& name, std::string* wrong);

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_LIBRARY_H_
