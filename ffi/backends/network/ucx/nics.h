// Declares functions that check NICs of this host, as UCX names them.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_NICS_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_NICS_H_

#include <string>

namespace fastjax::network::ucx {

// Returns what is wrong with the name of a NIC, or an empty string. UCX itself ignores a NIC that it does not find.
std::string CheckNic(const std::string& name);
// The first address of a network interface, as text; empty if it has none, or is none.
std::string AddressOf(const std::string& name);

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_NICS_H_
