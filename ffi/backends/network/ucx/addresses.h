// Declares Addresses, which a process publishes so that the others can reach it.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_ADDRESSES_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_ADDRESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fastjax::network::ucx {

// A word in a process's memory. A process that reads `value` at `at` in process `pid` has found that process, on its
// own host.
struct ReadProbe {
  uint64_t host;  // a hash of the host and its namespace of processes
  int64_t pid;
  uint64_t at;
  uint64_t value;
};

struct Addresses {
  int32_t process = 0;
  uint64_t incarnation = 0;  // differs each time a process is started
  ReadProbe read_probe{};
  std::string host;                      // for people
  std::vector<std::string> nic_workers;  // UCX's worker addresses
};

std::string Encode(const Addresses& addresses);
// Decodes. Returns what is wrong with the bytes, or an empty string.
std::string Decode(const std::string& bytes, Addresses* addresses);

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_ADDRESSES_H_
