#include "transport/gpu/work.h"

#include <algorithm>

namespace fastjax::transport::gpu {

Status Work::Prepare(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                     const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* alike,
                     transport::Launch* launch) {
  if (Status status = prepared_.Load(site, group, args, options, ranks, alike, launch); !status.ok()) return status;
  *alike = false;
  FindLanes(site, args, &layout_);
  if (Status status = fabric_->FindDomains(site, &layout_); !status.ok()) return status;
  GroupTraffic& traffic = prepared_.traffic();
  if (options.reverse && traffic.LandingsOverlap()) return beats_.BuildSum(site, args, traffic, layout_);
  return beats_.Build(site, args, prepared_.tables(), traffic, options.transposed_table != options.reverse, layout_);
}

Status Work::Launch(const CallSite& site, int32_t group) {
  if (!beats_.has_messages()) return launcher_.Launch(beats_, layout_, nullptr);
  Channels::OfGroup& own = channels_->Of(group);
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (Status status = fabric_->ChannelOf(site, group, layout_, &own.channel); !status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> turns = TakeTurns();
  return launcher_.Launch(beats_, layout_, own.channel.get());
}

std::vector<std::unique_lock<std::mutex>> Work::TakeTurns() {
  devices_.clear();
  for (const Caller* caller : layout_.lanes) devices_.push_back(caller->device);
  std::sort(devices_.begin(), devices_.end());
  devices_.erase(std::unique(devices_.begin(), devices_.end()), devices_.end());
  std::vector<std::unique_lock<std::mutex>> turns;
  turns.reserve(devices_.size());
  for (const int32_t device : devices_) turns.emplace_back(gpu_->turn(device));
  return turns;
}

}  // namespace fastjax::transport::gpu
