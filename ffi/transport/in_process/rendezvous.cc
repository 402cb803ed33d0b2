#include "transport/in_process/rendezvous.h"

#include <cstdio>

namespace fastjax::transport::in_process {
namespace {

std::string List(const std::vector<bool>& arrived, bool wanted) {
  std::string list;
  for (size_t p = 0; p < arrived.size(); ++p) {
    if (arrived[p] != wanted) continue;
    if (!list.empty()) list += ", ";
    list += std::to_string(p);
  }
  return list;
}

}  // namespace

std::string MissingDevices(const CallSite& site, int32_t group, const std::vector<bool>& arrived) {
  std::string message = site.Prefix() + "waited " + std::to_string(site.timeout_ms / 1000) + "." +
                        std::to_string(site.timeout_ms % 1000 / 100) + " s for device(s) " + List(arrived, false);
  if (site.groups() > 1) message += " of group " + std::to_string(group);
  message += ", which did not arrive; device(s) " + List(arrived, true) +
             " did. Every device of the axis must reach the call: look for a cond or while_loop that takes another "
             "way on those devices, or raise the limit with fastjax.options(timeout=...) or FASTJAX_TIMEOUT if they "
             "are only slow.";
  return message;
}

}  // namespace fastjax::transport::in_process
