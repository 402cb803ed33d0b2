// Takes the place of ucx/ in a build without UCX.
#include "backends/network/network_backend.h"

namespace fastjax::network {

std::shared_ptr<JobTransport> OpenTransport(const TransportOptions& /*options*/, std::string* wrong) {
  *wrong =
      "this fastjax was built without UCX (FASTJAX_UCX=OFF), and exchanges between processes need it. "
      "Install a fastjax that was built with UCX's headers, or run in one process.";
  return nullptr;
}

}  // namespace fastjax::network
