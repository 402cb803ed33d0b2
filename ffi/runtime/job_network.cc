#include "runtime/job_network.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>

namespace fastjax {
namespace {

constexpr const char* kNotOpen = "fastjax's network is not open in this process";

// Never destroyed: threads may outlive static destructors.
struct Holder {
  std::mutex mutex;
  std::shared_ptr<JobWire> wire;
  pid_t owner = 0;
};

Holder& GetHolder() {
  static auto* const holder = new Holder;
  return *holder;
}

// Returns null in a child that was forked, since the wire belongs to its parent.
std::shared_ptr<JobWire> Get() {
  Holder& holder = GetHolder();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  return holder.owner == getpid() ? holder.wire : nullptr;
}

// Exit handlers run before the destructors of libraries that were loaded earlier, UCX's among them. The wire's thread
// must have stopped before those.
void StopAtExit() {
  if (const auto wire = Get()) wire->Halt();
}

}  // namespace

std::shared_ptr<Wire> TheWire() { return Get(); }

std::string OpenTheWire(const WireOpener& open, const WireOptions& options, std::string* addresses) {
  if (Get() != nullptr) return "fastjax's network is open already";
  std::string wrong;
  std::shared_ptr<JobWire> wire = open(options, &wrong);
  if (wire == nullptr) return wrong;
  static const int registered = std::atexit(StopAtExit);
  static_cast<void>(registered);
  *addresses = wire->addresses();
  Holder& holder = GetHolder();
  {
    const std::lock_guard<std::mutex> lock(holder.mutex);
    if (holder.owner != getpid() && holder.wire != nullptr) {
      // The wire is the parent's: its destructor has no thread to join in this process.
      new std::shared_ptr<JobWire>(std::move(holder.wire));  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
      holder.wire = nullptr;
    }
    if (holder.wire == nullptr) {
      holder.owner = getpid();
      holder.wire.swap(wire);
      return "";
    }
  }
  wire->Close(std::chrono::milliseconds{0});
  return "fastjax's network is open already";
}

std::string AddPeer(int32_t process, const std::string& addresses) {
  const auto wire = Get();
  return wire == nullptr ? kNotOpen : wire->AddPeer(process, addresses);
}

std::string PeerLost(int32_t process, const std::string& why) {
  const auto wire = Get();
  if (wire == nullptr) return kNotOpen;
  wire->PeerLost(process, why);
  return "";
}

bool CloseTheWire(std::chrono::milliseconds limit) {
  const auto wire = Get();
  if (wire == nullptr) return true;
  const bool closed = wire->Close(limit);
  Holder& holder = GetHolder();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  if (holder.wire == wire) holder.wire = nullptr;
  return closed;
}

bool StateOfTheWire(WireState* state) {
  const auto wire = Get();
  if (wire == nullptr) return false;
  *state = wire->State();
  return true;
}

}  // namespace fastjax
