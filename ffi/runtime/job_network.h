// Declares this process's part of its job's network. It is opened once, by the bootstrap, and used by every exchange.
#ifndef FASTJAX_RUNTIME_JOB_NETWORK_H_
#define FASTJAX_RUNTIME_JOB_NETWORK_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/wire.h"
#include "runtime/wire_options.h"

namespace fastjax {

// A wire that processes join and leave. All of its methods may be called from any thread.
class JobWire : public Wire {
 public:
  // What other processes need to reach this one.
  virtual const std::string& addresses() const = 0;
  // The process has joined, with the addresses it gave us; or anew, with others, if it was restarted. Returns what is
  // wrong with them, or nothing.
  virtual std::string AddPeer(int32_t process, const std::string& addresses) = 0;
  // The process is gone, until it is added again.
  virtual void PeerLost(int32_t process, const std::string& why) = 0;
  // Ends all requests and tells the handler; sends what is in flight, for as long as that at most; and ends once the
  // handler is idle. False if the thread does not end: then it, and the wire, stay behind.
  virtual bool Close(std::chrono::milliseconds limit) = 0;
  // Before the process exits: stops the thread where it is. Waits a moment for that.
  virtual void Halt() = 0;
  virtual WireState State() = 0;
};

// Opens a wire. Null, with the reason, if that cannot be done.
using WireOpener = std::function<std::shared_ptr<JobWire>(const WireOptions& options, std::string* wrong)>;

// All of these from any thread.

// Null while none is open. Messages that arrive before it has a handler are kept.
std::shared_ptr<Wire> TheWire();

// Opens it, and gives what other processes need to reach it. Returns what is wrong, or nothing.
std::string OpenTheWire(const WireOpener& open, const WireOptions& options, std::string* addresses);
// A process has joined, or was restarted, with the addresses that it gave. Returns what is wrong, or nothing.
std::string AddPeer(int32_t process, const std::string& addresses);
// A process is gone for good, as somebody else has found out.
std::string PeerLost(int32_t process, const std::string& why);
// Sends what is in flight, for so long at most, and ends all else. False if it had to give up; true if none is open.
bool CloseTheWire(std::chrono::milliseconds limit);
// False if none is open.
bool StateOfTheWire(WireState* state);

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_JOB_NETWORK_H_
