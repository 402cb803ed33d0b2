// This process's wire. It is opened once, by the bootstrap, and reused by every exchange.
#ifndef FASTJAX_BACKENDS_NETWORK_THE_WIRE_H_
#define FASTJAX_BACKENDS_NETWORK_THE_WIRE_H_

#include <chrono>
#include <memory>
#include <string>

#include "runtime/wire.h"
#include "runtime/wire_options.h"

namespace fastjax::network {

// All of these from any thread.

// Null while none is open. Messages that arrive before it has a handler are kept.
std::shared_ptr<Wire> TheWire();

// Opens it, and gives what other processes need to reach it. Returns what is wrong, or nothing.
std::string OpenTheWire(const WireOptions& options, std::string* addresses);
// A process has joined, or was restarted, with the addresses that it gave. Returns what is wrong, or nothing.
std::string AddPeer(int32_t process, const std::string& addresses);
// A process is gone for good, as somebody else has found out.
std::string PeerLost(int32_t process, const std::string& why);
// Sends what is on its way, for so long at most, and ends all else. False if it had to give up; true if none is open.
bool CloseTheWire(std::chrono::milliseconds limit);
// False if none is open.
bool StateOfTheWire(WireState* state);

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_THE_WIRE_H_
