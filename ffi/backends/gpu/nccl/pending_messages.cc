#include "backends/gpu/nccl/pending_messages.h"

#include <algorithm>

namespace fastjax::gpu::nccl {

std::string Report::NamesOf(std::vector<int32_t> ranks) const {
  constexpr size_t kMostNames = 8;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string names;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNames); ++i) {
    names += (names.empty() ? "" : ", ") + site_.DeviceName(group_, site_.position_at[ranks[i]]);
  }
  if (ranks.size() > kMostNames) names += " and " + std::to_string(ranks.size() - kMostNames) + " more";
  return names;
}

Status PendingMessages::Begin(Gpu* gpu, const std::vector<Member>& members, std::shared_ptr<Report> report,
                              const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams) {
  report_ = std::move(report);
  calls_.resize(members.size());
  peers_.clear();
  pipeline_step_ = messages[0].pipeline_step;
  began_ = false;
  for (PendingCall& call : calls_) call.pending = false;
  for (int64_t i = 0; i < count; ++i) {
    calls_[static_cast<size_t>(messages[i].call)].pending = true;
    peers_.emplace_back(messages[i].call, messages[i].peer);
  }
  DeviceScope scope(*gpu);
  for (size_t i = 0; i < calls_.size(); ++i) {
    PendingCall& call = calls_[i];
    if (!call.pending) continue;
    const int32_t device = members[i].device;
    Status status = scope.Choose(device);
    if (status.ok() && call.began == nullptr) status = gpu->TakeEvent(device, &call.began);
    if (status.ok() && call.ended == nullptr) status = gpu->TakeEvent(device, &call.ended);
    if (status.ok()) status = gpu->Check(gpu->driver().RecordEvent(call.began, streams[i]), device, "record an event");
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status PendingMessages::End(Gpu* gpu, const std::vector<Member>& members, const std::vector<kernels::Stream>& streams) {
  DeviceScope scope(*gpu);
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!calls_[i].pending) continue;
    const int32_t device = members[i].device;
    if (Status status = scope.Choose(device); !status.ok()) return status;
    const int code = gpu->driver().RecordEvent(calls_[i].ended, streams[i]);
    if (code != 0) return gpu->Check(code, device, "record an event");
  }
  return Status::Ok();
}

void PendingMessages::ReturnEvents(Gpu* gpu, const std::vector<Member>& members) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    gpu->ReturnEvent(members[i].device, calls_[i].began);
    gpu->ReturnEvent(members[i].device, calls_[i].ended);
  }
  calls_.clear();
}

// A device that cannot be asked is broken, which others will say.
bool PendingMessages::IsReached(const Gpu& gpu, kernels::Event event) {
  int reached = 0;
  return gpu.driver().QueryEvent(event, &reached) != 0 || reached != 0;
}

bool PendingMessages::HasLanded(const Gpu& gpu) const {
  return std::all_of(calls_.begin(), calls_.end(),
                     [&](const PendingCall& call) { return !call.pending || IsReached(gpu, call.ended); });
}

bool PendingMessages::IsLate(const Gpu& gpu, Clock::time_point now) {
  if (!began_) {
    since_ = now;
    began_ = std::all_of(calls_.begin(), calls_.end(),
                         [&](const PendingCall& call) { return !call.pending || IsReached(gpu, call.began); });
  }
  return began_ && now - since_ >= std::chrono::milliseconds(report_->site().timeout_ms);
}

std::string PendingMessages::Text(const Gpu& gpu, const std::vector<Member>& members, bool ended) const {
  std::vector<int32_t> waiting;
  std::vector<int32_t> others;
  std::vector<bool> waits(calls_.size(), false);
  for (size_t i = 0; i < calls_.size(); ++i) {
    waits[i] = calls_[i].pending && !(ended && IsReached(gpu, calls_[i].ended));
    if (waits[i]) waiting.push_back(members[i].rank);
  }
  for (const auto& [call, rank] : peers_) {
    if (waits[static_cast<size_t>(call)]) others.push_back(rank);
  }
  const CallSite& site = report_->site();
  return site.Prefix() + report_->NamesOf(waiting) + " waited " + Seconds(site.timeout_ms) + " for messages of stage " +
         std::to_string(pipeline_step_ + 1) + ", from or to " + report_->NamesOf(others);
}

}  // namespace fastjax::gpu::nccl
