// Why no set of runners waits in a cycle. Every device sends, and receives, the steps of one phase strictly in order of
// stages, and begins a stage as soon as fewer than the window's worth of them have begun and not ended. Take the first
// step that has not ended anywhere, by phase (local, balance, scale-out, redistribute) and then by stage. What it hands
// on came by steps of an earlier phase, which have ended, so its gate is open at the sender. All earlier stages of its
// phase have ended, so both ends have room for it in their windows, and nothing before it in their queues: both have
// begun it, and it ends, whether or not it waits for its receiver: the transport may have it wait for others that
// receivers have asked for, of which one always moves. So there is no such step. This asks nothing of the windows but
// that they are 1 or more, and they may differ between processes.
#include "backends/network/runner.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "runtime/fault_points.h"
#include "runtime/process_state.h"

namespace fastjax::network {

using planner::Phase;
using std::chrono::steady_clock;

namespace {

// How long requests of an exchange that was given up may take to end by themselves. The other processes, which are
// told, end them.
constexpr std::chrono::milliseconds kGrace{500};

// Serializes the tasks of all runners once the transport's thread, on which they would run, has ended.
struct TransportEnded {
  std::mutex mutex;
};

}  // namespace

// What a NIC sends while acknowledgements are on their way, those that wait for threads that a busy host wakes late
// among them. Where the topology tells of a slower network than there is, a connection still moves 32 KiB in each round
// trip.
int64_t WindowOf(const CallSite& site) {
  constexpr int64_t kLeast = 32 << 10;
  constexpr double kWake = 5e-3;
  constexpr double kMost = 1e15;
  if (site.nic_bandwidth == 0) return std::numeric_limits<int64_t>::max();
  const double seconds = kWake + 2e-9 * static_cast<double>(site.scale_out_latency_ns);
  return kLeast + static_cast<int64_t>(std::min(seconds * static_cast<double>(site.nic_bandwidth), kMost));
}

void Runner::Start(Transport* transport, const CallSite* site, int32_t group, MessageSchedule* schedule,
                   uint64_t exchange_tag, int64_t order, std::function<void(Status)> done) {
  transport_ = transport;
  site_ = site;
  group_ = group;
  schedule_ = schedule;
  tag_ = exchange_tag;
  order_ = order;
  done_ = std::move(done);
  running_ = true;
  summed_ = !schedule->sums();
  disconnected_ = false;
  failure_ = Status::Ok();
  Moved();
  const Status prepared = Guarded([this] { Prepare(); });
  if (!prepared.ok()) return Fail(prepared);
  for (size_t queue = 0; queue < cursors_.size(); ++queue) Advance(static_cast<int32_t>(queue));
  for (size_t i = 0; i < schedule->rounds().size(); ++i) {
    const Round& round = schedule->rounds()[i];
    const bool copies = schedule->steps()[round.first_step].action == Action::kCopy;
    if (copies && (round.waits < 0 || missing_[round.waits] == 0)) AddCopies(static_cast<int32_t>(i));
  }
  Copy();
  SettleLater();
}

void Runner::Prepare() {
  const std::vector<Step>& steps = schedule_->steps();
  begun_.assign(transport_->processes(), 0);
  steps_left_ = static_cast<int64_t>(steps.size());
  states_.assign(steps.size(), State::kToCome);
  round_left_.clear();
  for (const Round& round : schedule_->rounds()) round_left_.push_back(round.steps);
  missing_.clear();
  for (const Gate& gate : schedule_->gates()) missing_.push_back(gate.missing);
  cursors_.assign(schedule_->queues().size(), Cursor{});
  ready_.clear();
  ready_last_ = 0;
  ready_.reserve(steps.size());
}

// Begins what may be begun of a queue of messages. Copies have neither order nor window.
void Runner::Advance(int32_t queue) {
  const Queue& all = schedule_->queues()[queue];
  Cursor& cursor = cursors_[queue];
  while (failure_.ok() && cursor.next < all.rounds) {
    const Round& round = schedule_->rounds()[all.first_round + cursor.next];
    const Action action = schedule_->steps()[round.first_step].action;
    if (action == Action::kCopy) return;
    if (cursor.open >= kWindow) return;
    if (round.waits >= 0 && missing_[round.waits] > 0) return;
    ++cursor.next;
    ++cursor.open;
    for (int32_t i = 0; i < round.steps; ++i) Begin(round.first_step + i);
  }
}

void Runner::Begin(int32_t step_index) {
  const Step& step = schedule_->steps()[step_index];
  if (step.action == Action::kSend) FaultPoints::Get().AtStep(order_, step.phase, schedule_->stages()[step.stage] + 1);
  const StepRows& rows = schedule_->rows()[step_index];
  const Iov* const iovs = schedule_->iovs().data() + rows.first;
  const RowMessage message = {
      schedule_->RouteOf(step), tag_ + schedule_->TagOf(step), iovs, rows.count, this, step_index};
  states_[step_index] = State::kBegun;
  ++outstanding_;
  ++begun_[message.route.process];
  step.action == Action::kSend ? transport_->Send(message) : transport_->Receive(message);
}

void Runner::OnDone(int64_t cookie, const Status& status) {
  const auto step_index = static_cast<int32_t>(cookie);
  const Step& step = schedule_->steps()[step_index];
  states_[step_index] = State::kEnded;
  const int32_t process = ProcessOf(step);
  --outstanding_;
  --begun_[process];
  Moved();
  if (!status.ok()) {
    FailStep(step, status);
  } else if (failure_.ok()) {
    EndStep(step_index);
    Copy();
  }
  Settle();
}

// Restarts the time-out: a message that takes longer than that is not stuck while it moves.
void Runner::OnMoved(int64_t /*cookie*/) { Moved(); }

void Runner::Moved() {
  last_progress_ = steady_clock::now();
  probed_ = false;
}

void Runner::EndStep(int32_t step_index) {
  const Step& step = schedule_->steps()[step_index];
  --steps_left_;
  const int32_t round = schedule_->rows()[step_index].round;
  const bool round_ended = --round_left_[round] == 0;
  if (round_ended && step.action != Action::kCopy) {
    const int32_t queue = schedule_->rounds()[round].queue;
    --cursors_[queue].open;
    Advance(queue);
  }
  if (step.opens >= 0 && --missing_[step.opens] == 0) OpenGate(schedule_->gates()[step.opens]);
}

void Runner::OpenGate(const Gate& gate) {
  if (gate.sends >= 0) Advance(gate.sends);
  if (gate.copies >= 0) AddCopies(gate.copies);
}

// Sums on the copy pool, since other exchanges need the transport's thread.
void Runner::StartSum() {
  summed_ = true;
  ++outstanding_;
  const auto done = [this] {
    Return([this] {
      --outstanding_;
      Settle();
    });
  };
  const Status taken = Guarded([&] { CopyPool::Get().Run(schedule_->sum_job(), order_, done); });
  if (taken.ok()) return;
  schedule_->sum_job()->RunInline();
  done();
}

// Ends the exchange if nothing of it is in flight. It may destroy the runner.
void Runner::Settle() {
  if (!running_ || outstanding_ > 0) return;
  if (failure_.ok() && steps_left_ > 0) return;
  if (failure_.ok() && !summed_) return StartSum();
  running_ = false;
  const auto done = std::move(done_);
  done_ = nullptr;
  done(failure_);
}

// Settles in a posted task, for callers that the listener to be told has called.
void Runner::SettleLater() {
  if (!PostCounted([] {})) Settle();
}

void Runner::Return(const std::function<void()>& task) {
  if (transport_->Post(task)) return;
  // Copies and sums come back from any thread, and to several runners. Nothing new may begin.
  const std::lock_guard<std::mutex> lock(ProcessState<TransportEnded>().mutex);
  if (failure_.ok()) failure_ = Status::Unavailable(site_->Prefix() + "the network of this process has been closed.");
  task();
}

void Runner::Fail(Status why) {
  if (!running_ || !failure_.ok()) return;
  EndRequests(std::move(why));
  SettleLater();
}

// The caller must call Settle afterwards.
void Runner::EndRequests(Status why) {
  failure_ = std::move(why);
  failed_at_ = steady_clock::now();
  transport_->Cancel(this);
  DropRows(transport_, *site_, tag_);
  DisconnectFromSilent();
}

void Runner::Probe() {
  if (!running_ || probed_) return;
  probed_ = true;
  for (size_t process = 0; process < begun_.size(); ++process) {
    if (begun_[process] > 0) transport_->Probe(static_cast<int32_t>(process));
  }
}

void Runner::DisconnectFromSilent() {
  for (size_t process = 0; process < begun_.size(); ++process) {
    if (begun_[process] == 0 || !transport_->Silent(static_cast<int32_t>(process))) continue;
    transport_->Disconnect(static_cast<int32_t>(process));
  }
}

void Runner::FailStep(const Step& step, const Status& status) {
  if (!failure_.ok()) return;
  const bool receives = step.action == Action::kReceive;
  std::string text = site_->Prefix() + StageName(step) + ": " + DeviceName(step.here) +
                     (receives ? " could not receive from " : " could not send to ") + DeviceName(step.peer) + " of " +
                     transport_->Describe(ProcessOf(step)) + ": " + status.message;
  EndRequests({status.code, std::move(text)});
}

void Runner::Tick(steady_clock::time_point now) {
  if (!running_ || failure_.ok() || disconnected_ || now - failed_at_ < kGrace) return;
  disconnected_ = true;
  for (size_t process = 0; process < begun_.size(); ++process) {
    if (begun_[process] > 0) transport_->Disconnect(static_cast<int32_t>(process));
  }
}

int32_t Runner::ProcessOf(const Step& step) const {
  return site_->process_of[site_->partition(group_, site_->position_at[step.peer])];
}

std::string Runner::DeviceName(int32_t rank) const { return site_->DeviceName(group_, site_->position_at[rank]); }

std::string Runner::StageName(const Step& step) const {
  std::string stage = "stage " + std::to_string(schedule_->stages()[step.stage] + 1) + " of " +
                      std::to_string(schedule_->plan_stages());
  switch (step.phase) {
    case Phase::kLocal:
      return schedule_->sums() ? "blocks to be summed" : "inside a server";
    case Phase::kBalance:
      return "balance before " + stage;
    case Phase::kScaleOut:
      return stage;
    case Phase::kRedistribute:
      return "redistribution after " + stage;
  }
  return stage;
}

void Runner::DropRows(Transport* transport, const CallSite& site, uint64_t exchange_tag) {
  constexpr uint64_t kMask = ~uint64_t{0} << kTagBits;
  const auto devices = static_cast<uint64_t>(site.group_size);
  // Groups of more than 2^14 pairs of devices take more than these bits.
  for (uint64_t at = 0; at < devices * devices * kPhases; at += uint64_t{1} << kTagBits) {
    transport->Drop((exchange_tag + at) & kMask, kMask);
  }
}

}  // namespace fastjax::network
