// Implements the checks of NICs of this host.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "backends/network/ucx/nic_worker.h"

namespace fastjax::network::ucx {
namespace {

std::string Text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = address->sa_family == AF_INET
                                ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                                : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text.data(), text.size()) != nullptr ? text.data() : "";
}

// Interfaces that are up, and their first addresses.
std::map<std::string, std::string> Interfaces() {
  std::map<std::string, std::string> interfaces;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return interfaces;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const auto family = each->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) interfaces.emplace(each->ifa_name, Text(each->ifa_addr));
  }
  freeifaddrs(all);
  return interfaces;
}

}  // namespace

std::string CheckNic(const std::string& name) {
  const auto interfaces = Interfaces();
  if (interfaces.count(name) != 0) return "";
  // RDMA devices are named with their port.
  const std::filesystem::path devices = "/sys/class/infiniband";
  const std::string device = name.substr(0, name.find(':'));
  std::error_code error;
  if (!device.empty() && device.find('/') == std::string::npos && std::filesystem::exists(devices / device, error)) {
    return "";
  }
  std::string there;
  for (const auto& [other, address] : interfaces) there += (there.empty() ? "" : ", ") + other;
  for (const auto& entry : std::filesystem::directory_iterator(devices, error)) {
    there += (there.empty() ? "" : ", ") + entry.path().filename().string();
  }
  return "no NIC '" + name + "' that is up and has an address; there are: " + (there.empty() ? "none" : there);
}

std::string AddressOf(const std::string& name) {
  const auto interfaces = Interfaces();
  const auto found = interfaces.find(name);
  return found == interfaces.end() ? "" : found->second;
}

}  // namespace fastjax::network::ucx
