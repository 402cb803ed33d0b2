#include "exchange/call_site.h"

namespace fastjax {

std::string CallSite::DeviceName(int32_t group, int32_t position) const {
  std::string name = "device " + std::to_string(position);
  if (groups() > 1) name += " of group " + std::to_string(group);
  return name;
}

std::string CallSite::Prefix() const {
  return operation + " over axis " + axis + " (channel " + std::to_string(channel) + "): ";
}

}  // namespace fastjax
