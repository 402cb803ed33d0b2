#include "backends/gpu/nccl/communicators.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace fastjax::gpu::nccl {
namespace {

constexpr std::chrono::seconds kLongestClose{5};
// NCCL should need less to put a group on its streams than the shortest sleep takes, which is 100 us: 50 that are asked
// for, and 50 by which Linux may be late. So a thread that waits for it only yields at first. What takes longer, such
// as making a communicator, takes milliseconds: then it sleeps, for others to have the core.
constexpr std::chrono::microseconds kYields{300};
constexpr std::chrono::microseconds kSleep{50};
constexpr const char* kMake = "make a communicator";
constexpr const char* kMove = "move messages";

}  // namespace

Status Communicators::Make(const Library* library, std::shared_ptr<Gpu> gpu, int32_t ranks, std::vector<Member> members,
                           const UniqueId& id, int64_t timeout_ms, std::unique_ptr<Communicators>* made) {
  const bool blocking = ranks == static_cast<int32_t>(members.size());
  std::unique_ptr<Communicators> own(new Communicators(library, std::move(gpu), std::move(members), blocking));
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (Status status = own->Init(ranks, id, deadline); !status.ok()) return status;
  *made = std::move(own);
  return Status::Ok();
}

Status Communicators::Init(int32_t ranks, const UniqueId& id, Clock::time_point deadline) {
  DeviceScope scope(*gpu_);
  if (Status status = Check(library_->GroupStart(), kMake, nullptr); !status.ok()) return status;
  Status status;
  for (size_t i = 0; i < members_.size() && status.ok(); ++i) {
    Config config;
    config.blocking = blocking_ ? 1 : 0;
    status = scope.Choose(members_[i].device);
    // A group that lacks ranks would wait for them. No rank at all makes NCCL refuse the group.
    const int32_t rank = status.ok() ? members_[i].rank : -1;
    const Result result = library_->CommInitRankConfig(&comms_[i], ranks, id, rank, &config);
    if (status.ok()) status = Check(result, kMake, nullptr);
  }
  const Status ended = End(kMake, deadline);  // in any case: a group that has begun must end
  return status.ok() ? ended : status;
}

Status Communicators::Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams,
                           int64_t timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  DeviceScope scope(*gpu_);
  if (Status status = Check(library_->GroupStart(), kMove, nullptr); !status.ok()) return status;
  Status status;
  int32_t call = -1;
  for (int64_t i = 0; i < count && status.ok(); ++i) {
    const MessageEnd& message = messages[i];
    if (message.call != call) status = scope.Choose(members_[static_cast<size_t>(message.call)].device);
    call = message.call;
    if (status.ok()) status = Put(message, streams[static_cast<size_t>(call)]);
  }
  const Status ended = End(kMove, deadline);
  return status.ok() ? ended : status;
}

Status Communicators::Put(const MessageEnd& message, kernels::Stream stream) {
  const Comm comm = comms_[static_cast<size_t>(message.call)];
  const auto bytes = static_cast<size_t>(message.bytes);
  return Check(message.sends ? library_->Send(message.data, bytes, kInt8, message.peer, comm, stream)
                             : library_->Recv(message.data, bytes, kInt8, message.peer, comm, stream),
               kMove, comm);
}

Status Communicators::End(const char* what, Clock::time_point deadline) {
  const Result result = library_->GroupEnd();
  if (result == kInProgress) return Await(what, deadline);
  return Check(result, what, comms_.front());
}

// Nothing may be put on the streams before all is on them. What NCCL does on threads of its own only polling can tell.
Status Communicators::Await(const char* what, Clock::time_point deadline) const {
  const Clock::time_point yields_until = Clock::now() + kYields;
  for (const Comm comm : comms_) {
    Result result = kInProgress;
    while (comm != nullptr) {
      if (Status status = Check(library_->CommGetAsyncError(comm, &result), what, comm); !status.ok()) return status;
      if (result != kInProgress) break;
      const Clock::time_point now = Clock::now();
      if (now >= deadline) {
        return Status::Deadline(library_->name + " could not " + what +
                                " in time: other processes did not come to it.");
      }
      now < yields_until ? std::this_thread::yield() : std::this_thread::sleep_for(kSleep);
    }
    if (Status status = Check(comm == nullptr ? kSuccess : result, what, comm); !status.ok()) return status;
  }
  return Status::Ok();
}

Status Communicators::Check(Result result, const char* what, Comm comm) const {
  // A call inside a group, on communicators that do not block.
  if (result == kSuccess || (result == kInProgress && !blocking_)) return Status::Ok();
  const char* const text = library_->GetErrorString(result);
  const char* const last = library_->GetLastError(comm);
  std::string message = library_->name + " could not " + what + ": " + (text == nullptr ? "unknown error" : text) +
                        " (" + std::to_string(result) + ")";
  if (last != nullptr && *last != '\0') message += ", last '" + std::string(last) + "'";
  return Status::Internal(message + ". NCCL_DEBUG=WARN has it say more.");
}

Status Communicators::Health() const {
  for (const Comm comm : comms_) {
    Result error = kSuccess;
    if (Status status = Check(library_->CommGetAsyncError(comm, &error), "tell its state", comm); !status.ok()) {
      return status;
    }
    if (error == kInProgress) continue;
    if (Status status = Check(error, kMove, comm); !status.ok()) return status;
  }
  return Status::Ok();
}

void Communicators::Close() {
  DeviceScope scope(*gpu_);
  if (!blocking_) {
    Status status;
    for (size_t i = 0; i < comms_.size() && status.ok(); ++i) {
      status = scope.Choose(members_[i].device);
      if (status.ok()) status = Check(library_->CommFinalize(comms_[i]), "close a communicator", comms_[i]);
    }
    if (status.ok()) status = Await("close a communicator", Clock::now() + kLongestClose);
    if (!status.ok()) return Abort();  // other processes have ended, or go on with it
  }
  for (size_t i = 0; i < comms_.size(); ++i) {
    const Comm comm = std::exchange(comms_[i], nullptr);
    if (comm == nullptr) continue;
    static_cast<void>(scope.Choose(members_[i].device));  // or not: it must end
    library_->CommDestroy(comm);
  }
}

// All at once: what one communicator has on its stream may come after what only the end of another's brings about.
void Communicators::Abort() {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < comms_.size(); ++i) {
    const Comm comm = std::exchange(comms_[i], nullptr);
    if (comm == nullptr) continue;
    const auto abort = [this, comm, device = members_[i].device] {
      DeviceScope scope(*gpu_);
      gpu_->driver().SetDevice(device);  // or not: it must end
      library_->CommAbort(comm);
    };
    try {
      threads.emplace_back(abort);
    } catch (const std::system_error&) {
      abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fastjax::gpu::nccl
