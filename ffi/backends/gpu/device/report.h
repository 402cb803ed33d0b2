// Declares Report, which keeps an error that is found after the host has returned from an exchange, until the group's
// next exchange returns it.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_REPORT_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_REPORT_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/status.h"

namespace fastjax::gpu {

// A group of a call site, as errors speak of it: exchanges are over for the host before they have happened, so that
// what goes wrong then is told to the next.
class Report {
 public:
  Report(const CallSite& site, int32_t group) : site_(site), group_(group) {}

  const CallSite& site() const { return site_; }
  // "device 3", by rank.
  std::string NameOf(int32_t rank) const { return site_.DeviceName(group_, site_.position_at[rank]); }

  // The first that is set is taken, once.
  void Set(Status failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = std::move(failure);
  }
  Status Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(failure_, Status::Ok());
  }

 private:
  const CallSite site_;  // a copy: what is in flight may outlive the call site
  const int32_t group_;
  std::mutex mutex_;
  Status failure_;
};

// "device 3, device 5", by rank; of many, the first.
std::string NamesOf(const Report& report, std::vector<int32_t> ranks);
// "0.3 s": the call site's limit.
std::string LimitOf(const Report& report);

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_REPORT_H_
