// In the place of the_wire.cc in a build without UCX: no wire is ever open.
#include "backends/network/the_wire.h"

namespace fastjax::network {
namespace {

constexpr const char* kWithoutUcx =
    "this fastjax was built without UCX (FASTJAX_UCX=OFF), and exchanges between processes need it. Install a fastjax "
    "that was built with UCX's headers, or run in one process.";

}  // namespace

std::shared_ptr<Wire> TheWire() { return nullptr; }

std::string OpenTheWire(const WireOptions& /*options*/, std::string* /*addresses*/) { return kWithoutUcx; }

std::string AddPeer(int32_t /*process*/, const std::string& /*addresses*/) { return kWithoutUcx; }

std::string PeerLost(int32_t /*process*/, const std::string& /*why*/) { return kWithoutUcx; }

bool CloseTheWire(std::chrono::milliseconds /*limit*/) { return true; }

bool StateOfTheWire(WireState* /*state*/) { return false; }

}  // namespace fastjax::network
