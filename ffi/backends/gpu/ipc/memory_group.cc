#include "backends/gpu/ipc/memory_group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/completer.h"

namespace fastjax::gpu::ipc {
namespace {

constexpr std::chrono::microseconds kPollQuiet{200};
constexpr const char* kAfter =
    " Rows of that exchange are undefined; the processes share their devices' memory anew for the next one.";
constexpr const char* kAdvice =
    " Look for devices or processes that have stopped, "
    "or raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT if they are only slow.";

// What the page's first word says when it is closed: by whom, and exchanges from which number on may be undefined.
constexpr int kWhoBits = 16;
uint64_t Closed(uint64_t exchange, size_t line) { return exchange << kWhoBits | (line + 1); }
uint64_t FirstUndefined(uint64_t closed) { return closed >> kWhoBits; }
size_t CloserOf(uint64_t closed) { return static_cast<size_t>(closed & ((uint64_t{1} << kWhoBits) - 1)) - 1; }

}  // namespace

MemoryGroup::MemoryGroup(std::shared_ptr<Gpu> gpu, std::shared_ptr<Report> report, std::unique_ptr<BarrierPage> page,
                         const std::vector<GroupDevice>& devices)
    : gpu_(std::move(gpu)), report_(std::move(report)), page_(std::move(page)), devices_(devices) {}

Status MemoryGroup::Make(std::shared_ptr<Gpu> gpu, std::shared_ptr<Report> report, std::unique_ptr<BarrierPage> page,
                         const std::vector<GroupDevice>& devices, std::shared_ptr<MemoryGroup>* memory_group) {
  std::shared_ptr<MemoryGroup> made(new MemoryGroup(std::move(gpu), std::move(report), std::move(page), devices));
  const auto here = [](const GroupDevice& device) { return device.device >= 0; };
  const auto first = std::find_if(devices.begin(), devices.end(), here);
  const auto count = static_cast<int32_t>(std::count_if(devices.begin(), devices.end(), here));
  for (auto at = first; at != first + count; ++at) {
    kernels::BarrierLine* lines = nullptr;
    if (Status status = made->page_->LinesOn(at->device, &lines); !status.ok()) return status;
    made->barriers_.push_back({lines, static_cast<int32_t>(devices.size()), static_cast<int32_t>(at - devices.begin()),
                               static_cast<int32_t>(first - devices.begin()), count, 0, false, nullptr});
    made->own_.push_back(at->device);
    kernels::Event event = nullptr;
    if (Status status = made->gpu_->TakeEvent(at->device, &event); !status.ok()) return status;
    made->passed_.push_back(event);
  }
  Watchdog::Get().Watch(made);
  *memory_group = std::move(made);
  return Status::Ok();
}

MemoryGroup::~MemoryGroup() {
  for (size_t i = 0; i < passed_.size(); ++i) gpu_->ReturnEvent(own_[i], passed_[i]);
  page_->Unlink();
  // Its end takes calls of the driver that may wait, and this thread may be the watchdog's, which has others to watch.
  Completer::Get().Run([page = std::move(page_)]() mutable { page.reset(); });
}

uint64_t MemoryGroup::StepOf(size_t line) const {
  return kernels::LoadShared(&page_->lines()[kernels::StepLine(static_cast<int32_t>(line))].word);
}

bool MemoryGroup::IsWhole() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Reap();
  return failure_.ok();
}

void MemoryGroup::Begin(uint64_t* step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *step = begun_++ * kSteps;
}

Status MemoryGroup::Launched(const std::vector<kernels::Stream>& streams) {
  DeviceScope scope(*gpu_);
  for (size_t i = 0; i < streams.size(); ++i) {
    if (Status status = scope.Choose(own_[i]); !status.ok()) return status;
    const int code = gpu_->driver().RecordEvent(passed_[i], streams[i]);
    if (code != 0) return gpu_->Check(code, own_[i], "record an event");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    launched_ = begun_;
    kept_ = shared_from_this();
    Reap();
    if (!failure_.ok()) {
      const Status told = report_->Take();
      return told.ok() ? failure_ : told;
    }
  }
  Watchdog::Get().Touch();
  return Status::Ok();
}

// With mutex_ held. Steps are looked at before the page's word: if nobody had closed it when all had come to their
// last step, all rows have moved.
void MemoryGroup::Reap() {
  uint64_t least = StepOf(0);
  for (size_t line = 1; line < devices_.size(); ++line) least = std::min(least, StepOf(line));
  const uint64_t ended = least / kSteps + (least % kSteps == kLastStep ? 1 : 0);
  const uint64_t closed = kernels::LoadShared(&page_->lines()->word);
  landed_ = std::max(landed_, std::min({launched_, ended, closed == 0 ? ended : FirstUndefined(closed)}));
  if (closed == 0 || !failure_.ok()) return;
  const bool told = launched_ == landed_;  // nothing was in flight: nothing to tell
  Fail(Status::Unavailable(report_->site().Prefix() + "the process of " +
                           report_->NameOf(devices_[CloserOf(closed)].rank) + " gave up an exchange." + kAfter +
                           " It says why where it is told."),
       told);
}

// With mutex_ held. Nothing that is shared is touched by what has not begun; what has comes to its end.
void MemoryGroup::Fail(const Status& why, bool told) {
  if (!failure_.ok()) return;
  if (!told) report_->Set(why);
  failure_ = why;
  failed_at_ = Clock::now();
  uint64_t open = 0;
  __atomic_compare_exchange_n(&page_->lines()->word, &open,
                              Closed(landed_, static_cast<size_t>(barriers_.front().device)), false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
}

void MemoryGroup::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Reap();
    Fail(Status::Unavailable(report_->site().Prefix() +
                             "rows in flight were given up, since the exchange after theirs failed." + kAfter),
         landed_ == launched_);
    kept_ = shared_from_this();  // streams may have to be let go
  }
  Watchdog::Get().Touch();
}

void MemoryGroup::Withdraw(uint64_t step) {
  for (const kernels::Barrier& barrier : barriers_) {
    kernels::StoreShared(&page_->lines()[kernels::StepLine(barrier.device)].word, step + kLastStep);
  }
}

void MemoryGroup::GiveUp() {
  Close();
  Clock::time_point end;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end = failed_at_ + limit();
  }
  while (!IsQuiet() && Clock::now() < end) std::this_thread::sleep_for(kPollQuiet);
  const std::lock_guard<std::mutex> lock(mutex_);
  LetGo();
}

// Devices of other processes are between exchanges: what comes after finds the page closed. A device tells its first
// step before it looks at the page, and the page was closed before this looks at steps.
bool MemoryGroup::IsQuiet() const {
  for (size_t line = 0; line < devices_.size(); ++line) {
    const uint64_t step = StepOf(line) % kSteps;
    if (!IsHere(line) && step != 0 && step != kLastStep) return false;
  }
  return true;
}

// With mutex_ held.
void MemoryGroup::LetGo() {
  for (const kernels::Barrier& barrier : barriers_) {
    kernels::StoreShared(&page_->lines()[kernels::LetGoLine(barrier.device)].word, 1);
  }
  let_go_ = true;
}

bool MemoryGroup::Expire(Clock::time_point now) {
  std::shared_ptr<MemoryGroup> last;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kept_ == nullptr) return false;
  gpu_->NeedDevice(own_.front());
  Reap();
  if (failure_.ok()) {
    if (const Status fault = FindFault(now); !fault.ok()) Fail(fault, false);
  }
  const bool failed = !failure_.ok();
  if (failed && !let_go_ && (IsQuiet() || now - failed_at_ >= limit())) LetGo();
  const bool goes_on = failed ? !let_go_ : landed_ < launched_;
  if (goes_on || !StreamsHavePassed()) return true;
  last = std::move(kept_);  // not gone before the lock is
  return false;
}

// Time counts from when all devices here have come to a step: what they compute before is theirs.
Status MemoryGroup::FindFault(Clock::time_point now) {
  uint64_t own = UINT64_MAX;
  uint64_t others = UINT64_MAX;
  for (size_t line = 0; line < devices_.size(); ++line) {
    uint64_t& least = IsHere(line) ? own : others;
    least = std::min(least, StepOf(line));
  }
  if (own != watched_ || own <= landed_ * kSteps) {
    watched_ = own;
    since_ = now;
    return Status::Ok();
  }
  if (others >= own || now - since_ < limit()) return Status::Ok();
  return Status::Deadline(LateText() + "." + kAfter + kAdvice);
}

// For whom: those that are farthest behind, since others may be waiting for these as well.
std::string MemoryGroup::LateText() const {
  uint64_t least = StepOf(0);
  for (size_t line = 1; line < devices_.size(); ++line) least = std::min(least, StepOf(line));
  std::vector<int32_t> waiting;
  std::vector<int32_t> late;
  for (size_t line = 0; line < devices_.size(); ++line) {
    if (IsHere(line)) {
      waiting.push_back(devices_[line].rank);
    } else if (StepOf(line) == least) {
      late.push_back(devices_[line].rank);
    }
  }
  const bool begun = least > landed_ * kSteps;
  return report_->site().Prefix() + NamesOf(*report_, waiting) + " waited " + LimitOf(*report_) + " for " +
         NamesOf(*report_, late) +
         (begun ? " to finish stage " + std::to_string(least % kSteps) : " to begin the exchange");
}

bool MemoryGroup::StreamsHavePassed() const {
  return std::all_of(passed_.begin(), passed_.end(), [this](kernels::Event event) {
    int reached = 0;
    return gpu_->driver().QueryEvent(event, &reached) != 0 || reached != 0;
  });
}

}  // namespace fastjax::gpu::ipc
