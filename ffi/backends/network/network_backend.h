// Declares the backend for devices of several processes. The processes meet by messages and make the same plan. Each
// sends and receives the rows of its devices over a transport. And how the transport of this build is opened.
#ifndef FASTJAX_BACKENDS_NETWORK_NETWORK_BACKEND_H_
#define FASTJAX_BACKENDS_NETWORK_NETWORK_BACKEND_H_

#include <memory>
#include <string>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "rendezvous/process_group.h"
#include "runtime/job_network.h"

namespace fastjax::network {

// The process group must outlive the transport's thread.
std::shared_ptr<Exchange> OpenExchange(std::shared_ptr<ProcessGroup> process_group,
                                       const std::shared_ptr<const CallSite>& site, ExchangeOptions options);

// Opens a transport over UCX. Returns null, with the reason, if UCX cannot, or in a build without UCX.
std::shared_ptr<JobTransport> OpenTransport(const TransportOptions& options, std::string* wrong);

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_NETWORK_BACKEND_H_
