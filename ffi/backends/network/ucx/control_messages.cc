#include "backends/network/ucx/control_messages.h"

#include <cstring>
#include <utility>

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
  Outgoing* const message = connections_->Compose(Kind::kMessage, bytes);
  if (bytes > 0) std::memcpy(message->data.data(), data, bytes);
  if (peer->joined) {
    if (peer->readable && !peer->greeted) Hello(peer);
    connections_->Send(peer, 0, 0, message);
  } else {
    connections_->Keep(message, &peer->outbox);
  }
}

void ControlMessages::Hello(Peer* peer) {
  peer->greeted = true;
  Outgoing* const message = connections_->Compose(Kind::kHello, 0);
  message->header.tag = peer->readable ? 1 : 0;
  message->header.number = static_cast<uint64_t>(peer->from.descriptor()) + 1;
  connections_->Send(peer, 0, 0, message);
}

void ControlMessages::OnJoined(Peer* peer) {
  if (!peer->outbox.empty() && peer->readable && !peer->greeted) Hello(peer);
  while (!peer->outbox.empty()) connections_->Send(peer, 0, 0, connections_->TakeBack(&peer->outbox));
}

Incoming* ControlMessages::Add(Peer* peer) {
  Incoming* const incoming = Take(&peer->inbox, &free_incoming_);
  incoming->control_messages = this;
  incoming->peer = peer;
  incoming->data.clear();
  incoming->lost = Status::Ok();
  incoming->renewed = false;
  incoming->ready = false;
  incoming->given_up = false;
  ++incoming_;
  return incoming;
}

void ControlMessages::OnArrival(Peer* peer, const Arrival& arrival) {
  Incoming* const incoming = Add(peer);
  if (arrival.rendezvous) return Fetch(incoming, arrival);
  const auto* const from = static_cast<const std::byte*>(arrival.data);
  incoming->data.assign(from, from + arrival.length);
  parts_->Release(arrival);
  Fetched(incoming, UCS_OK);
}

void ControlMessages::Fetch(Incoming* incoming, const Arrival& arrival) {
  incoming->data.resize(arrival.length);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = [](void* handle, ucs_status_t status, size_t, void* argument) {
    auto* const fetched = static_cast<Incoming*>(argument);
    fetched->control_messages->parts_->library->ucp_request_free(handle);
    --fetched->control_messages->parts_->in_flight;
    fetched->control_messages->Fetched(fetched, status);
  };
  param.user_data = incoming;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t handle = parts_->library->ucp_am_recv_data_nbx(
      arrival.nic_worker->worker(), arrival.data, incoming->data.data(), incoming->data.size(), &param);
  if (UCS_PTR_IS_PTR(handle)) {
    ++parts_->in_flight;
  } else {
    Fetched(incoming, UCS_PTR_STATUS(handle));
  }
}

void ControlMessages::Fetched(Incoming* incoming, ucs_status_t status) {
  if (status == UCS_OK && !incoming->given_up) {
    ++parts_->counters.messages_received;
    parts_->counters.bytes_received += static_cast<int64_t>(incoming->data.size());
    incoming->ready = true;
    return;
  }
  if (!incoming->given_up) {
    // Its sender is gone, then: the endpoint says so, too, and ends all else.
    --incoming_;
  }
  Move(&free_incoming_, incoming->given_up ? &given_up_ : &incoming->peer->inbox, incoming->self);
}

void ControlMessages::EndAll(Peer* peer) {
  for (auto it = peer->inbox.begin(); it != peer->inbox.end();) {
    Incoming* const incoming = &*it++;
    if (incoming->ready) continue;
    incoming->given_up = true;
    --incoming_;
    Move(&given_up_, &peer->inbox, incoming->self);
  }
  connections_->Discard(&peer->outbox);
}

void ControlMessages::Lost(Peer* peer, const Status& why) {
  Incoming* const incoming = Add(peer);
  incoming->lost = why;
  incoming->ready = true;
}

void ControlMessages::Renewed(Peer* peer, const Status& why) {
  Lost(peer, why);
  peer->inbox.back().renewed = true;
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
      Move(&free_incoming_, &now, now.begin());
    }
  }
  return any;
}

}  // namespace fastjax::network::ucx
