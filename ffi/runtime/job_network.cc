#include "runtime/job_network.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "runtime/process_state.h"

namespace fastjax {
namespace {

struct Holder {
  std::mutex mutex;
  std::shared_ptr<JobTransport> transport;
  pid_t owner = 0;
};

// Exit handlers run before the destructors of libraries that were loaded earlier, UCX's among them. The transport's
// thread must have stopped before those.
void StopAtExit() {
  if (const auto transport = TheTransport()) transport->Halt();
}

}  // namespace

std::shared_ptr<JobTransport> TheTransport() {
  auto& holder = ProcessState<Holder>();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  return holder.owner == getpid() ? holder.transport : nullptr;
}

std::string OpenTheTransport(const TransportOpener& open, const TransportOptions& options, std::string* addresses) {
  if (TheTransport() != nullptr) return "fastjax's network is open already";
  std::string wrong;
  std::shared_ptr<JobTransport> transport = open(options, &wrong);
  if (transport == nullptr) return wrong;
  static const int registered = std::atexit(StopAtExit);
  static_cast<void>(registered);
  *addresses = transport->addresses();
  auto& holder = ProcessState<Holder>();
  {
    const std::lock_guard<std::mutex> lock(holder.mutex);
    if (holder.owner != getpid() && holder.transport != nullptr) {
      // The transport is the parent's: its destructor has no thread to join in this process.
      new std::shared_ptr<JobTransport>(
          std::move(holder.transport));  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
      holder.transport = nullptr;
    }
    if (holder.transport == nullptr) {
      holder.owner = getpid();
      holder.transport.swap(transport);
      return "";
    }
  }
  transport->Close(std::chrono::milliseconds{0});
  return "fastjax's network is open already";
}

bool CloseTheTransport(std::chrono::milliseconds limit) {
  const auto transport = TheTransport();
  if (transport == nullptr) return true;
  const bool closed = transport->Close(limit);
  auto& holder = ProcessState<Holder>();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  if (holder.transport == transport) holder.transport = nullptr;
  return closed;
}

}  // namespace fastjax
