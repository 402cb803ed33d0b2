#include "backends/network/ucx/mail.h"

#include <cstring>
#include <utility>

namespace fastjax::network::ucx {

void Mail::Send(int32_t process, const void* data, size_t bytes) {
  if (process < 0 || static_cast<size_t>(process) >= core_->peers.size()) return;
  Peer* const peer = &core_->peers[static_cast<size_t>(process)];
  if (process == core_->process) {
    const auto* const from = static_cast<const std::byte*>(data);
    Incoming* const incoming = Add(peer);
    incoming->data.assign(from, from + bytes);
    incoming->ready = true;
    return;
  }
  if (peer->gone) return Lost(peer, peer->why);
  peer->told = false;
  Outgoing* const letter = links_->Compose(Kind::kMessage, bytes);
  if (bytes > 0) std::memcpy(letter->data.data(), data, bytes);
  if (peer->joined) {
    if (peer->readable && !peer->greeted) Hello(peer);
    links_->Send(peer, 0, 0, letter);
  } else {
    links_->Keep(letter, &peer->outbox);
  }
}

void Mail::Hello(Peer* peer) {
  peer->greeted = true;
  Outgoing* const letter = links_->Compose(Kind::kHello, 0);
  letter->header.tag = peer->readable ? 1 : 0;
  letter->header.number = static_cast<uint64_t>(peer->from.descriptor()) + 1;
  links_->Send(peer, 0, 0, letter);
}

void Mail::OnJoined(Peer* peer) {
  if (!peer->outbox.empty() && peer->readable && !peer->greeted) Hello(peer);
  while (!peer->outbox.empty()) links_->Send(peer, 0, 0, links_->TakeBack(&peer->outbox));
}

Incoming* Mail::Add(Peer* peer) {
  Incoming* const incoming = Take(&peer->inbox, &free_incoming_);
  incoming->mail = this;
  incoming->peer = peer;
  incoming->data.clear();
  incoming->lost = Status::Ok();
  incoming->renewed = false;
  incoming->ready = false;
  incoming->given_up = false;
  ++incoming_;
  return incoming;
}

void Mail::OnArrival(Peer* peer, const Arrival& arrival) {
  Incoming* const incoming = Add(peer);
  if (arrival.rendezvous) return Fetch(incoming, arrival);
  const auto* const from = static_cast<const std::byte*>(arrival.data);
  incoming->data.assign(from, from + arrival.length);
  core_->Release(arrival);
  Fetched(incoming, UCS_OK);
}

void Mail::Fetch(Incoming* incoming, const Arrival& arrival) {
  incoming->data.resize(arrival.length);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = [](void* handle, ucs_status_t status, size_t, void* argument) {
    auto* const fetched = static_cast<Incoming*>(argument);
    fetched->mail->core_->library->ucp_request_free(handle);
    --fetched->mail->core_->in_flight;
    fetched->mail->Fetched(fetched, status);
  };
  param.user_data = incoming;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t handle = core_->library->ucp_am_recv_data_nbx(
      arrival.lane->worker(), arrival.data, incoming->data.data(), incoming->data.size(), &param);
  if (UCS_PTR_IS_PTR(handle)) {
    ++core_->in_flight;
  } else {
    Fetched(incoming, UCS_PTR_STATUS(handle));
  }
}

void Mail::Fetched(Incoming* incoming, ucs_status_t status) {
  if (status == UCS_OK && !incoming->given_up) {
    ++core_->counters.messages_received;
    core_->counters.bytes_received += static_cast<int64_t>(incoming->data.size());
    incoming->ready = true;
    return;
  }
  if (!incoming->given_up) {
    // Its sender is gone, then: the endpoint says so, too, and ends all else.
    --incoming_;
  }
  Move(&free_incoming_, incoming->given_up ? &given_up_ : &incoming->peer->inbox, incoming->self);
}

void Mail::EndAll(Peer* peer) {
  for (auto it = peer->inbox.begin(); it != peer->inbox.end();) {
    Incoming* const incoming = &*it++;
    if (incoming->ready) continue;
    incoming->given_up = true;
    --incoming_;
    Move(&given_up_, &peer->inbox, incoming->self);
  }
  links_->Discard(&peer->outbox);
}

void Mail::Lost(Peer* peer, const Status& why) {
  Incoming* const incoming = Add(peer);
  incoming->lost = why;
  incoming->ready = true;
}

void Mail::Renewed(Peer* peer, const Status& why) {
  Lost(peer, why);
  peer->inbox.back().renewed = true;
}

bool Mail::Deliver(Handler* handler) {
  if (incoming_ == 0 || handler == nullptr) return false;
  bool any = false;
  for (Peer& peer : core_->peers) {
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
