// Declares the options of a wire, and the report on its state.
#ifndef FASTJAX_RUNTIME_WIRE_OPTIONS_H_
#define FASTJAX_RUNTIME_WIRE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/keyed_hash.h"

namespace fastjax {

struct WireOptions {
  int32_t process = 0;
  int32_t processes = 1;
  Secret secret{};
  std::string library = "libucp.so.0";  // path or name of UCX's libucp
  std::vector<std::string> nics;        // one NIC worker each; none: one NIC worker with what UCX chooses
  std::string transports;               // UCX_TLS for this wire; empty: UCX's choice
};

struct NicWorkerState {
  std::string nic;
  std::vector<std::string> transports;  // in use
};

struct WireState {
  std::string library, version;
  std::vector<NicWorkerState> nic_workers;
  std::vector<std::string> peers;
  int64_t messages_sent = 0, messages_received = 0;
  int64_t bytes_sent = 0, bytes_received = 0;  // of messages and rows
  int64_t refused = 0;                         // what came without proof that it belongs to the job, and was dropped
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_WIRE_OPTIONS_H_
