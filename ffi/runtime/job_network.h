// Declares this process's part of its job's network. It is opened once, by the bootstrap, and used by every exchange.
#ifndef FASTJAX_RUNTIME_JOB_NETWORK_H_
#define FASTJAX_RUNTIME_JOB_NETWORK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/keyed_hash.h"
#include "runtime/transport.h"

namespace fastjax {

struct TransportOptions {
  int32_t process = 0;
  int32_t processes = 1;
  Secret secret{};
  std::string library = "libucp.so.0";  // path or name of UCX's libucp
  std::vector<std::string> nics;        // one NIC worker each; none: one NIC worker with what UCX chooses
  std::string transports;               // UCX_TLS for this transport; empty: UCX's choice
};

struct NicWorkerState {
  std::string nic;
  std::vector<std::string> transports;  // in use
};

struct TransportCounters {
  int64_t messages_sent = 0, messages_received = 0;
  int64_t bytes_sent = 0, bytes_received = 0;  // of messages and rows
  int64_t refused = 0;                         // what came without proof that it belongs to the job, and was dropped
};

struct TransportState : TransportCounters {
  std::string library, version;
  std::vector<NicWorkerState> nic_workers;
  std::vector<std::string> peers;
};

// A transport that processes join and leave. All of its methods may be called from any thread.
class JobTransport : public Transport {
 public:
  // Returns what other processes need to reach this one.
  virtual const std::string& addresses() const = 0;
  // To be called when a process has joined with these addresses, or anew with others after a restart. Returns what is
  // wrong with them, or an empty string.
  virtual std::string AddPeer(int32_t process, const std::string& addresses) = 0;
  // To be called when a process is gone, until it is added again.
  virtual void PeerLost(int32_t process, const std::string& why) = 0;
  // Ends all requests, tells the handler, sends what is in flight for at most that long, and ends the transport's
  // thread once the handler is idle. False if the thread does not end: then it is left running, and the transport is
  // never destroyed.
  virtual bool Close(std::chrono::milliseconds limit) = 0;
  // Stops the transport's thread where it is, before the process exits. Waits a moment for that.
  virtual void Halt() = 0;
  virtual TransportState State() = 0;
};

// Opens a transport. Returns null, with the reason, if that cannot be done.
using TransportOpener =
    std::function<std::shared_ptr<JobTransport>(const TransportOptions& options, std::string* wrong)>;

// All of these functions may be called from any thread.

// Returns the transport; null while none is open, and in a child that was forked, since it is the parent's. Messages
// that arrive before it has a handler are kept.
std::shared_ptr<JobTransport> TheTransport();

// Opens the transport, and gives what other processes need to reach it. Returns what is wrong, or an empty string.
std::string OpenTheTransport(const TransportOpener& open, const TransportOptions& options, std::string* addresses);
// Sends what is in flight, for at most that long, and closes the transport. False if it had to give up; true if none is
// open.
bool CloseTheTransport(std::chrono::milliseconds limit);

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_JOB_NETWORK_H_
