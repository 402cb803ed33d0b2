#include "rendezvous/rendezvous.h"

#include <cstdio>

#include "runtime/process_state.h"

namespace fastjax {
namespace {

// "waited 60.0 s for device(s) 1, 2 of group 0, which did not arrive; device(s) 0, 3 did."
std::string Waited(const CallSite& site, const std::vector<bool>& members, int32_t group,
                   const std::vector<bool>& arrived, int64_t ms) {
  const auto list = [&](bool wanted) {
    std::string text;
    for (int32_t position = 0; position < site.group_size; ++position) {
      if (!members[site.partition(group, position)] || arrived[position] != wanted) continue;
      if (!text.empty()) text += ", ";
      text += std::to_string(position);
    }
    return text;
  };
  std::string text = site.Prefix() + "waited " + Seconds(ms) + " for device(s) " + list(false);
  if (site.groups() > 1) text += " of group " + std::to_string(group);
  return text + ", which did not arrive; device(s) " + list(true) + " did.";
}

// CPU clients of jaxlib before 0.12 run out of threads where many launches are queued.
std::string ManyLaunches(const CallSite& site) {
  return site.platform == "cpu"
             ? "where launches are queued and jaxlib is older than 0.12, wait for each launch or set "
               "NPROC to 33 for each device of a process"
             : "";
}

struct Counters {
  std::atomic<int64_t> unfinished{0};
  std::atomic<int64_t> launches{0};
};

}  // namespace

std::atomic<int64_t>& Unfinished() { return ProcessState<Counters>().unfinished; }

int64_t NextLaunch() { return ProcessState<Counters>().launches.fetch_add(1, std::memory_order_relaxed); }

std::vector<bool> MembersOf(const CallSite& site, int32_t process) {
  std::vector<bool> members(site.group_of.size(), true);
  if (process == kAllProcesses) return members;
  for (size_t p = 0; p < members.size(); ++p) members[p] = site.process_of[p] == process;
  return members;
}

std::string MissingDevices(const CallSite& site, const std::vector<bool>& members, int32_t group,
                           const std::vector<bool>& arrived) {
  const std::string launches = ManyLaunches(site);
  return Waited(site, members, group, arrived, site.timeout_ms) +
         " Every device of the axis must reach the call: "
         "look for a cond or while_loop that takes another way on those devices; " +
         (launches.empty() ? "" : launches + "; ") +
         "or raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT if they are only slow.";
}

std::string StillMissing(const CallSite& site, const std::vector<bool>& members, int32_t group,
                         const std::vector<bool>& arrived) {
  const std::string launches = ManyLaunches(site);
  return Waited(site, members, group, arrived, site.timeout_ms / 2) + " Waiting on, for " + Seconds(site.timeout_ms) +
         " in all" + (launches.empty() ? "." : "; " + launches + ".");
}

void PrintToStderr(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

}  // namespace fastjax
