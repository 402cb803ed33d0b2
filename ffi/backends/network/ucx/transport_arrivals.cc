// Implements the checks of arrivals: whether they are of the job, of which connection, and in which order.
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "backends/network/ucx/transport.h"

namespace fastjax::network::ucx {
namespace {

constexpr size_t kMostAtOnce = 4 * kMostInRing;  // out of one ring in one poll
// Generations that another process may have counted while this one did not look. With more it would run out of them.
constexpr uint32_t kMostAhead = 1 << 16;

}  // namespace

ucs_status_t UcxTransport::OnActiveMessage(void* argument, const void* header, size_t header_length, void* data,
                                           size_t length, const ucp_am_recv_param_t* param) {
  const auto* const target = static_cast<MessageTarget*>(argument);
  Arrival arrival;
  if (header_length == sizeof(Header)) std::memcpy(&arrival.header, header, sizeof(Header));
  // None of ours is a rendezvous, of which there would be no data yet.
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (header_length != sizeof(Header) || rendezvous || !target->transport->Genuine(arrival.header, length)) {
    ++target->transport->parts_.counters.refused;
    return UCS_OK;  // UCX drops it
  }
  arrival.nic_worker = target->nic_worker;
  arrival.length = length;
  const bool kept = length > 0 && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  if (kept) arrival.data = data;
  target->transport->arrivals_.push_back(arrival);
  return kept ? UCS_INPROGRESS : UCS_OK;
}

bool UcxTransport::Genuine(const Header& header, size_t length) const {
  return header.magic == kHeaderMagic && header.version == kHeaderVersion && header.to == parts_.process &&
         header.receiver == parts_.incarnation && header.from >= 0 && header.from < processes() &&
         header.from != parts_.process && header.bytes == length && header.hash == HashOf(parts_.secret, header);
}

// Returns the proof that is in the ring that process `writer` writes, of the two rings between this process and the
// peer.
uint64_t UcxTransport::RingProof(int32_t writer, const Peer& peer) const {
  const bool ours = writer == parts_.process;
  const uint64_t words[] = {static_cast<uint64_t>(writer), ours ? parts_.incarnation : peer.addresses.incarnation,
                            ours ? peer.addresses.incarnation : parts_.incarnation};
  return KeyedHash(words, sizeof(words));
}

// Before failures are looked at, so that what a process wrote before it ended counts.
void UcxTransport::TakeFromRings() {
  for (Peer& peer : parts_.peers) {
    const bool open = peer.from.descriptor() >= 0;
    Arrival arrival;
    uint32_t nic_worker = 0;
    // No more than a while's worth, so that whoever writes without end does not keep others from being heard.
    for (size_t taken = 0; taken < kMostAtOnce && peer.from.Next(&arrival.header, &nic_worker);) {
      taken += sizeof(Header) + arrival.header.bytes;
      const Header& header = arrival.header;
      const bool good =
          nic_worker < parts_.nic_workers.size() && header.from == peer.process && Genuine(header, header.bytes);
      arrival.memory = good && header.bytes > 0 ? parts_.memory.Take() : nullptr;
      if (arrival.memory != nullptr && arrival.memory->size() < header.bytes) arrival.memory->resize(header.bytes);
      arrival.data = arrival.memory == nullptr ? nullptr : arrival.memory->data();
      arrival.length = header.bytes;
      peer.from.Take(static_cast<std::byte*>(arrival.data));
      if (!good) {
        ++parts_.counters.refused;
        continue;
      }
      arrival.nic_worker = parts_.nic_workers[nic_worker].get();
      from_rings_.push_back(arrival);
    }
    // What lay in it is lost, and what follows would wait for that.
    if (open && peer.from.descriptor() < 0) Disconnect(peer.process);
  }
}

// What is in a ring was written before any greeting that has arrived: it may be of the generation that the greeting
// ends.
bool UcxTransport::TakeArrivals() {
  if (arrivals_.empty() && from_rings_.empty()) return false;
  std::vector<Arrival> now, after;
  now.swap(from_rings_);
  after.swap(arrivals_);
  for (const Arrival& arrival : now) Dispatch(arrival);
  for (const Arrival& arrival : after) Dispatch(arrival);
  return true;
}

void UcxTransport::Dispatch(const Arrival& arrival) {
  const Header header = arrival.header;
  Peer* const peer = &parts_.peers[static_cast<size_t>(header.from)];
  if (!peer->joined && !peer->gone) return peer->early.push_back(arrival);
  if (peer->gone || header.sender != peer->addresses.incarnation ||
      header.nic_worker >= peer->addresses.nic_workers.size() ||
      static_cast<size_t>(header.connection) >= std::size(kConnections)) {
    ++parts_.counters.refused;
    return parts_.Release(arrival);
  }
  if (header.generation > peer->generation && header.generation - peer->generation > kMostAhead) {
    ++parts_.counters.refused;
    return parts_.Release(arrival);
  }
  if (header.generation < peer->generation) {
    parts_.Release(arrival);
    if (!peer->greeted) control_messages_.Hello(peer);  // so that it learns that this was lost
    return;
  }
  if (header.generation > peer->generation) {
    const Status why = Status::Unavailable(parts_.Name(*peer) + " lost or gave up the connection");
    End(peer, why, header.generation);
    control_messages_.Lost(peer, why, true);
  }
  if (!peer->heard) {
    peer->heard = true;
    peer->told = false;
    SetDescription(peer->process, "", "");
    // With an endpoint of our own there, we are told if it dies, though we may have nothing to say to it.
    connections_.Connect(*peer, arrival.nic_worker->index(), static_cast<int32_t>(header.nic_worker));
  }
  peer->heard_lately = true;
  InOrder(peer, arrival);
}

void UcxTransport::InOrder(Peer* peer, const Arrival& arrival) {
  Endpoint& endpoint = *peer->endpoint(arrival.nic_worker->index(), static_cast<int32_t>(arrival.header.nic_worker),
                                       arrival.header.connection);
  if (arrival.header.sequence < endpoint.arrived) {  // a second time
    ++parts_.counters.refused;
    return parts_.Release(arrival);
  }
  endpoint.asked = {};  // whatever comes is an answer
  if (arrival.header.sequence > endpoint.arrived) return endpoint.held.push_back(arrival);
  ++endpoint.arrived;
  Deliver(peer, arrival);
  for (auto it = endpoint.held.begin(); it != endpoint.held.end();) {
    if (it->header.sequence != endpoint.arrived) {
      ++it;
      continue;
    }
    const Arrival next = *it;
    endpoint.held.erase(it);
    ++endpoint.arrived;
    Deliver(peer, next);
    it = endpoint.held.begin();
  }
}

void UcxTransport::Deliver(Peer* peer, const Arrival& arrival) {
  switch (arrival.header.kind) {
    case Kind::kMessage:
      return control_messages_.OnArrival(peer, arrival);
    case Kind::kHello:
      peer->reads = peer->reads || arrival.header.tag == 1;
      if (peer->readable && arrival.header.number > 0 && !peer->to.connected()) {
        peer->to.Open(peer->addresses.read_probe.pid, static_cast<int>(arrival.header.number - 1),
                      RingProof(parts_.process, *peer));
      }
      return parts_.Release(arrival);
    case Kind::kProbe:
      connections_.Answer(peer, arrival, Kind::kHere, arrival.header.connection, 0);
      return parts_.Release(arrival);
    case Kind::kHere:
      return parts_.Release(arrival);
    case Kind::kRows:
    case Kind::kOffer:
    case Kind::kGrant:
    case Kind::kTaken:
    case Kind::kChunk:
    case Kind::kAck:
      return row_transfers_.OnArrival(peer, arrival);
    default:
      ++parts_.counters.refused;
      return parts_.Release(arrival);
  }
}

}  // namespace fastjax::network::ucx
