// Declares how the network of this build is opened.
#ifndef FASTJAX_BACKENDS_NETWORK_OPEN_WIRE_H_
#define FASTJAX_BACKENDS_NETWORK_OPEN_WIRE_H_

#include <memory>
#include <string>

#include "runtime/job_network.h"

namespace fastjax::network {

// Opens a wire over UCX. Returns null, with the reason, if UCX cannot, or in a build without UCX.
std::shared_ptr<JobWire> OpenWire(const WireOptions& options, std::string* wrong);

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_OPEN_WIRE_H_
