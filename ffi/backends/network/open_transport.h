// Declares how the network of this build is opened.
#ifndef FASTJAX_BACKENDS_NETWORK_OPEN_TRANSPORT_H_
#define FASTJAX_BACKENDS_NETWORK_OPEN_TRANSPORT_H_

#include <memory>
#include <string>

#include "runtime/job_network.h"

namespace fastjax::network {

// Opens a transport over UCX. Returns null, with the reason, if UCX cannot, or in a build without UCX.
std::shared_ptr<JobTransport> OpenTransport(const TransportOptions& options, std::string* wrong);

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_OPEN_TRANSPORT_H_
