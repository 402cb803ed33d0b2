// Declares NicWorker: UCX for one NIC, a context and the worker that drives it. The transport's thread uses it. And
// functions that check NICs of this host, as UCX names them.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_NIC_WORKER_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_NIC_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "backends/network/ucx/library.h"

namespace fastjax::network::ucx {

// Returns what is wrong with the name of a NIC, or an empty string. UCX itself ignores a NIC that it does not find.
std::string CheckNic(const std::string& name);
// The first address of a network interface, as text; empty if it has none, or is none.
std::string AddressOf(const std::string& name);

// Used by one thread at a time.
class NicWorker {
 public:
  // Returns null, with the reason, if UCX cannot. `nic` is as UCX names it, `transports` UCX_TLS; if one is empty, UCX
  // chooses. `index`: its number among those of this process.
  static std::unique_ptr<NicWorker> Open(const Library& library, int32_t index, const std::string& nic,
                                         const std::string& transports, int32_t processes, std::string* wrong);
  ~NicWorker();
  NicWorker(const NicWorker&) = delete;
  NicWorker& operator=(const NicWorker&) = delete;

  // Sets the function that gets active messages. To be called before any can arrive.
  ucs_status_t SetReceiver(ucp_am_recv_callback_t receiver, void* argument);

  // Makes an endpoint to the worker of that address. `failed` is called when the endpoint fails.
  ucs_status_t Connect(const std::string& address, ucp_err_handler_cb_t failed, void* argument, ucp_ep_h* endpoint);
  // Returns the transports of an endpoint: "tcp/eth0" and so on.
  std::vector<std::string> TransportsOf(ucp_ep_h endpoint) const;

  unsigned Progress() { return library_.ucp_worker_progress(worker_); }
  // Arms the worker's descriptor. False if an event is pending, so that Progress must be called instead.
  bool Arm() { return library_.ucp_worker_arm(worker_) == UCS_OK; }

  const Library& library() const { return library_; }
  ucp_worker_h worker() const { return worker_; }
  int32_t index() const { return index_; }
  const std::string& nic() const { return nic_; }
  const std::string& address() const { return address_; }
  int event_fd() const { return event_fd_; }

 private:
  NicWorker(const Library& library, int32_t index, const std::string& nic)
      : library_(library), index_(index), nic_(nic) {}
  std::string Said(const char* what, ucs_status_t status) const;
  std::string OpenContext(const std::string& transports, int32_t processes);
  std::string OpenWorker();

  const Library& library_;
  const int32_t index_;
  const std::string nic_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int event_fd_ = -1;
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_NIC_WORKER_H_
