#include "backends/gpu/device/layout.h"

#include <algorithm>

namespace fastjax::gpu {

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

void FindServers(int32_t devices_per_server, Layout* layout) {
  for (size_t rank = 0; rank < layout->domain_of.size(); ++rank) {
    layout->domain_of[rank] = static_cast<int32_t>(rank) / devices_per_server;
  }
}

}  // namespace fastjax::gpu
