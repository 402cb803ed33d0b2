#include "transport/gpu/loopback.h"

#include <algorithm>
#include <string>
#include <utility>

namespace fastjax::transport::gpu {
namespace {

// What matches sends with receives: from whom to whom, and which of those.
struct End {
  std::pair<int32_t, int32_t> way;
  int64_t order;
  const Message* message;
};

std::vector<End> EndsOf(const Message* messages, int64_t count, bool sends) {
  std::vector<End> ends;
  for (int64_t i = 0; i < count; ++i) {
    const Message& message = messages[i];
    if (message.sends != sends) continue;
    const auto way = sends ? std::pair(message.here, message.peer) : std::pair(message.peer, message.here);
    ends.push_back({way, i, &message});
  }
  std::sort(ends.begin(), ends.end(),
            [](const End& a, const End& b) { return std::pair(a.way, a.order) < std::pair(b.way, b.order); });
  return ends;
}

}  // namespace

Status LoopbackFabric::FindDomains(const CallSite& /*site*/, Layout* layout) {
  for (size_t rank = 0; rank < layout->domain_of.size(); ++rank) {
    layout->domain_of[rank] = static_cast<int32_t>(rank) / devices_per_server_;
  }
  return Status::Ok();
}

Status LoopbackFabric::ChannelOf(const CallSite& /*site*/, int32_t /*group*/, const Layout& /*layout*/,
                                 std::shared_ptr<Channel>* channel) {
  *channel = channel_;
  return Status::Ok();
}

Status LoopbackFabric::Loop::Move(const Message* messages, int64_t count, const std::vector<kernels::Stream>& streams) {
  const std::vector<End> sends = EndsOf(messages, count, true);
  const std::vector<End> receives = EndsOf(messages, count, false);
  if (sends.size() != receives.size()) return Status::Internal("fastjax: a message has one end only.");
  for (size_t i = 0; i < sends.size(); ++i) {
    const Message& from = *sends[i].message;
    const Message& to = *receives[i].message;
    if (sends[i].way != receives[i].way || from.bytes != to.bytes) {
      return Status::Internal("fastjax: rank " + std::to_string(from.here) + " sends " + std::to_string(from.bytes) +
                              " bytes to rank " + std::to_string(from.peer) + ", and rank " + std::to_string(to.here) +
                              " expects " + std::to_string(to.bytes) + " of rank " + std::to_string(to.peer) + ".");
    }
    const int code = gpu_->driver().Copy(to.data, from.data, static_cast<size_t>(from.bytes),
                                         streams[static_cast<size_t>(from.lane)]);
    if (Status status = gpu_->Check(code, 0, "copy a message"); !status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace fastjax::transport::gpu
