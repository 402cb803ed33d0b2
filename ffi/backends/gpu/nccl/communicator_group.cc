#include "backends/gpu/nccl/communicator_group.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace fastjax::gpu::nccl {
namespace {

constexpr std::chrono::microseconds kPollRoom{100};
constexpr std::chrono::milliseconds kPollClose{5};
constexpr const char* kAfter =
    " The communicators were aborted, and rows of that exchange are undefined; the next one makes new ones.";
constexpr const char* kAdvice =
    " Look for devices or processes that have stopped, "
    "or raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT if they are only slow.";
constexpr const char* kOfOthers = "messages in flight were given up, since another exchange of these devices failed: ";

// Whether there could be another thread. If not, it is left undone, and whoever waits for it finds that out.
template <typename Work>
bool StartBeside(Work work) {
  try {
    std::thread(std::move(work)).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

std::shared_ptr<CommunicatorGroup> CommunicatorGroup::Create(std::shared_ptr<Gpu> gpu,
                                                             std::unique_ptr<Communicators> communicators) {
  std::shared_ptr<CommunicatorGroup> communicator_group(
      new CommunicatorGroup(std::move(gpu), std::move(communicators)));
  Watchdog::Get().Watch(communicator_group);
  // The watchdog holds it now and then, and must not be the one to close it.
  return {communicator_group.get(), [communicator_group](CommunicatorGroup* own) { own->Close(); }};
}

CommunicatorGroup::~CommunicatorGroup() {
  for (PendingMessages& pending : pending_) pending.ReturnEvents(gpu_.get(), members());
}

Status CommunicatorGroup::Move(const std::shared_ptr<Report>& report, const MessageEnd* messages, int64_t count,
                               const std::vector<kernels::Stream>& streams) {
  std::unique_lock<std::mutex> calling(calling_);
  if (Status status = AwaitRoom(report.get(), &calling); !status.ok()) return status;
  PendingMessages& pending = At(launched_);  // written by whoever calls only
  Status status = pending.Begin(gpu_.get(), members(), report, messages, count, streams);
  if (!status.ok()) return status;
  status = communicators_->Move(messages, count, streams, report->site().timeout_ms);
  if (status.code == Code::kDeadlineExceeded) {
    status.message = pending.Text(*gpu_, members(), false) + ": " + status.message + kAfter + kAdvice;
  } else if (!status.ok()) {
    status.message = report->site().Prefix() + status.message;
  }
  if (status.ok()) status = pending.End(gpu_.get(), members(), streams);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!status.ok()) {
    Fail(status, report.get());
    return status;
  }
  if (!failure_.ok()) return FailureFor(report.get());
  ++launched_;
  Watchdog::Get().Touch();
  return status;
}

// Does not wait unless devices are so far behind that they would keep the host waiting in any case. Meanwhile others
// may call: the watchdog asks how the communicators are.
Status CommunicatorGroup::AwaitRoom(Report* report, std::unique_lock<std::mutex>* calling) {
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_.ok()) return FailureFor(report);
      Reap();
      if (launched_ - landed_ < kMostPending) return Status::Ok();
    }
    calling->unlock();
    std::this_thread::sleep_for(kPollRoom);
    calling->lock();
  }
}

void CommunicatorGroup::Reap() {
  while (landed_ < launched_ && At(landed_).HasLanded(*gpu_)) ++landed_;
}

bool CommunicatorGroup::IsReadyFor(const std::vector<Member>& members) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_.ok() && communicators_->members() == members;
}

bool CommunicatorGroup::Expire(PendingMessages::Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok() || closed_ || landed_ == launched_) return false;
  gpu_->NeedDevice(members().front().device);
  Reap();
  if (landed_ == launched_) return false;
  Report* told = nullptr;
  if (const Status fault = FindFault(now, &told); !fault.ok()) {
    told->Set(fault);
    Fail(fault, told);
  }
  return failure_.ok();
}

Status CommunicatorGroup::FindFault(PendingMessages::Clock::time_point now, Report** told) {
  for (uint64_t i = landed_; i < launched_; ++i) {
    PendingMessages& pending = At(i);
    if (!pending.IsLate(*gpu_, now) || pending.HasLanded(*gpu_)) continue;
    *told = pending.report();
    return Status::Deadline(pending.Text(*gpu_, members(), true) + "." + kAfter + kAdvice);
  }
  // Who is calling NCCL finds out by itself. Waiting for it would be in the wrong order, and the watchdog has others.
  const std::unique_lock<std::mutex> calling(calling_, std::try_to_lock);
  if (!calling.owns_lock()) return Status::Ok();
  Status health = communicators_->Health();
  if (!health.ok()) {
    *told = At(landed_).report();
    health.message = (*told)->site().Prefix() + health.message + kAfter;
  }
  return health;
}

// For whom a failure that others caused is news, or who has not been told yet.
Status CommunicatorGroup::FailureFor(Report* report) const {
  Status own = report->Take();
  if (!own.ok()) return own;
  return {failure_.code, report->site().Prefix() + kOfOthers + failure_.message};
}

// With mutex_ held. `told`: who gets to know it from what this is called for. NCCL may take its time to abort, and the
// watchdog has others to watch.
void CommunicatorGroup::Fail(const Status& failure, const Report* told) {
  if (!failure_.ok()) return;
  failure_ = failure;
  for (uint64_t i = landed_; i < launched_; ++i) {
    Report* const report = At(i).report();
    if (report != told) report->Set({failure.code, report->site().Prefix() + kOfOthers + failure.message});
  }
  StartBeside([self = shared_from_this()] {
    const std::lock_guard<std::mutex> calling(self->calling_);
    self->communicators_->Abort();
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->aborted_ = true;
    self->changed_.notify_all();
  });
}

bool CommunicatorGroup::AwaitAbort(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_.ok()) return true;
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return aborted_; });
}

// What a call site launched may be in flight when the call site is gone.
void CommunicatorGroup::Close() {
  {
    DeviceScope scope(*gpu_);
    static_cast<void>(scope.Choose(members().front().device));
    if (CloseIfLanded()) return;
  }
  StartBeside([self = shared_from_this()] {
    self->gpu_->NeedDevice(self->members().front().device);
    while (!self->CloseIfLanded()) std::this_thread::sleep_for(kPollClose);  // the watchdog sees to it that this ends
  });
}

// False while something is in flight. What has failed is aborted instead.
bool CommunicatorGroup::CloseIfLanded() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Reap();
    if (!failure_.ok()) return true;
    closed_ = landed_ == launched_;
  }
  if (closed_) communicators_->Close();
  return closed_;
}

}  // namespace fastjax::gpu::nccl
