#include "backends/network/open_wire.h"

#include "backends/network/ucx/wire.h"

namespace fastjax::network {

std::shared_ptr<JobWire> OpenWire(const WireOptions& options, std::string* wrong) {
  return ucx::UcxWire::Open(options, wrong);
}

}  // namespace fastjax::network
