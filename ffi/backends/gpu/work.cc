#include "backends/gpu/work.h"

#include <algorithm>
#include <functional>

namespace fastjax::gpu {
namespace {

// Kernels look for the one slice that an entry is in.
Status OverlappingSlices(const CallSite& site) {
  return Status::Invalid(site.Prefix() +
                         "input slices overlap, and GPUs sum rows by indices only where each index is sent once. "
                         "Repeat the index instead of the slice.");
}

// Finds the calls of the devices here, `args` by position.
void FindCalls(const CallSite& site, const std::vector<ExchangeArgs>& args, Layout* layout) {
  layout->domain_of.assign(static_cast<size_t>(site.group_size), 0);
  layout->call_of.assign(static_cast<size_t>(site.group_size), -1);
  layout->calls.clear();
  for (size_t rank = 0; rank < layout->call_of.size(); ++rank) {
    const Caller* const caller = CallerOf(args[static_cast<size_t>(site.position_at[rank])]);
    if (caller == nullptr) continue;
    const auto same = [&](const Caller* other) { return other->stream == caller->stream; };
    const auto found = std::find_if(layout->calls.begin(), layout->calls.end(), same);
    layout->call_of[rank] = static_cast<int32_t>(found - layout->calls.begin());
    if (found == layout->calls.end()) layout->calls.push_back(caller);
  }
}

// Servers of so many devices are domains.
void FindServers(int32_t devices_per_server, Layout* layout) {
  for (size_t rank = 0; rank < layout->domain_of.size(); ++rank) {
    layout->domain_of[rank] = static_cast<int32_t>(rank) / devices_per_server;
  }
}

}  // namespace

Status Work::PrepareAndLaunch(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                              const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* found_by_all,
                              fastjax::Launch* launch) {
  if (Status status = prepared_.Load(site, group, args, options, ranks, found_by_all, launch); !status.ok())
    return status;
  GroupTraffic& traffic = prepared_.traffic();
  const bool overlap = options.reverse && traffic.DestinationsOverlap();
  *found_by_all = options.indexed && overlap;
  if (*found_by_all) return OverlappingSlices(site);
  FindCalls(site, args, &layout_);
  if (gpus_.fabric == nullptr) {
    FindServers(gpus_.devices_per_server, &layout_);
  } else if (Status status = gpus_.fabric->FindDomains(site, &layout_); !status.ok()) {
    return status;
  }
  const LaunchSchedule::Kind kind = {options.reverse && (options.indexed || overlap), options.indexed};
  Status built = schedule_.Build(site, args, prepared_.plans(), kind, traffic, layout_);
  return built.ok() ? Launch(site, group) : built;
}

// Processes make communicators together, also those that have no messages: what all know decides.
bool Work::MayHaveMessages(const CallSite& site) {
  const std::vector<int32_t>& domains = layout_.domain_of;
  const bool one_domain = std::adjacent_find(domains.begin(), domains.end(), std::not_equal_to<>()) == domains.end();
  if (!site.spans_processes() || one_domain) return schedule_.has_messages();
  for (int32_t origin = 0; origin < site.group_size; ++origin) {
    for (int32_t target = 0; target < site.group_size; ++target) {
      if (origin != target && prepared_.traffic().rows(origin, target) > 0) return true;
    }
  }
  return false;
}

Status Work::Launch(const CallSite& site, int32_t group) {
  if (!MayHaveMessages(site)) return launcher_.Launch(schedule_, layout_, nullptr);
  if (gpus_.fabric == nullptr) {
    return Status::Internal(site.Prefix() + "ranks that one device executes must be on one stream.");
  }
  nccl::Channel& channel = channels_->Of(site, group);
  const std::lock_guard<std::mutex> lock(channel.mutex());
  if (Status status = gpus_.fabric->Connect(site, group, layout_, &channel); !status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockDevices();
  return launcher_.Launch(schedule_, layout_, &channel);
}

std::vector<std::unique_lock<std::mutex>> Work::LockDevices() {
  devices_.clear();
  for (const Caller* caller : layout_.calls) devices_.push_back(caller->device);
  std::sort(devices_.begin(), devices_.end());
  devices_.erase(std::unique(devices_.begin(), devices_.end()), devices_.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(devices_.size());
  for (const int32_t device : devices_) locks.emplace_back(gpus_.gpu->message_mutex(device));
  return locks;
}

}  // namespace fastjax::gpu
