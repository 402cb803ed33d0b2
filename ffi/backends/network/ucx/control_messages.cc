#include "backends/network/ucx/control_messages.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace fastjax::network::ucx {

void ControlMessages::Send(int32_t process, const void* data, size_t bytes) {
  if (process < 0 || static_cast<size_t>(process) >= parts_->peers.size()) return;
  Peer* const peer = &parts_->peers[static_cast<size_t>(process)];
  if (process == parts_->process) {
    const auto* const from = static_cast<const std::byte*>(data);
    Incoming* const incoming = Add(peer);
    incoming->data.assign(from, from + bytes);
    incoming->ready = true;
    return;
  }
  if (peer->gone) return Lost(peer, peer->why);
  peer->told = false;
  size_t left = bytes;
  do {
    const size_t length = std::min(left, kMostData);
    Outgoing* const part = connections_->Compose(Kind::kMessage, length);
    if (length > 0) std::memcpy(part->data.data(), static_cast<const std::byte*>(data) + (bytes - left), length);
    left -= length;
    part->header.rows = left;
    if (peer->joined) {
      connections_->Send(peer, 0, 0, part);
    } else {
      connections_->Keep(part, &peer->outbox);
    }
  } while (left > 0);
}

void ControlMessages::Hello(Peer* peer) {
  peer->greeted = true;
  Outgoing* const message = connections_->Compose(Kind::kHello, 0);
  message->header.tag = peer->readable ? 1 : 0;
  message->header.number = static_cast<uint64_t>(peer->from.descriptor()) + 1;
  connections_->Send(peer, 0, 0, message);
}

void ControlMessages::OnJoined(Peer* peer) {
  while (!peer->outbox.empty()) connections_->Send(peer, 0, 0, connections_->TakeBack(&peer->outbox));
}

Incoming* ControlMessages::Add(Peer* peer) {
  if (free_.empty()) free_.emplace_back();
  Incoming* const incoming = Move(&peer->inbox, &free_, free_.begin());
  incoming->data.clear();
  incoming->lost = Status::Ok();
  incoming->renewed = false;
  incoming->ready = false;
  ++incoming_;
  return incoming;
}

// Parts come in order.
void ControlMessages::OnArrival(Peer* peer, const Arrival& arrival) {
  Incoming* const incoming = peer->inbox.empty() || peer->inbox.back().ready ? Add(peer) : &peer->inbox.back();
  const auto* const from = static_cast<const std::byte*>(arrival.data);
  incoming->data.insert(incoming->data.end(), from, from + arrival.length);
  incoming->ready = arrival.header.rows == 0;
  parts_->counters.messages_received += incoming->ready ? 1 : 0;
  parts_->counters.bytes_received += static_cast<int64_t>(arrival.length);
  parts_->Release(arrival);
}

void ControlMessages::EndAll(Peer* peer) {
  if (!peer->inbox.empty() && !peer->inbox.back().ready) {
    Move(&free_, &peer->inbox, std::prev(peer->inbox.end()));
    --incoming_;
  }
  connections_->Discard(&peer->outbox);
}

void ControlMessages::Lost(Peer* peer, const Status& why, bool renewed) {
  Incoming* const incoming = Add(peer);
  incoming->lost = why;
  incoming->renewed = renewed;
  incoming->ready = true;
}

bool ControlMessages::Deliver(Handler* handler) {
  if (incoming_ == 0 || handler == nullptr) return false;
  bool any = false;
  for (Peer& peer : parts_->peers) {
    while (!peer.inbox.empty() && peer.inbox.front().ready) {
      std::list<Incoming> now;
      Incoming* const incoming = Move(&now, &peer.inbox, peer.inbox.begin());
      --incoming_;
      any = true;
      if (incoming->renewed) {
        handler->OnRenewed(peer.process, incoming->lost);
      } else if (incoming->lost.ok()) {
        handler->OnMessage(peer.process, incoming->data.data(), incoming->data.size());
      } else {
        handler->OnLost(peer.process, incoming->lost);
      }
      free_.splice(free_.end(), now);
    }
  }
  return any;
}

}  // namespace fastjax::network::ucx
