// Declares Peer: what a transport knows of each other process. It is plain data: connections, rows and control messages
// each work on their part of it.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_PEER_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_PEER_H_

#include <chrono>
#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "backends/network/ucx/addresses.h"
#include "backends/network/ucx/header.h"
#include "backends/network/ucx/memory_read.h"
#include "backends/network/ucx/nic_worker.h"
#include "backends/network/ucx/ring.h"
#include "runtime/job_network.h"
#include "runtime/reused.h"
#include "runtime/transport.h"

namespace fastjax::network::ucx {

class Connections;
struct Peer;

// Moves a node between lists, so that nothing is allocated once there are enough of them.
template <typename T>
T* Move(std::list<T>* to, std::list<T>* from, typename std::list<T>::iterator it) {
  to->splice(to->end(), *from, it);
  return &to->back();
}
template <typename T>
T* Take(std::list<T>* to, std::list<T>* free) {
  if (free->empty()) free->emplace_back();
  T* const taken = Move(to, free, free->begin());
  taken->self = std::prev(to->end());
  return taken;
}

// A message that came from another process. It is kept until it is received or released.
struct Arrival {
  Header header{};
  NicWorker* nic_worker = nullptr;
  void* data = nullptr;
  size_t length = 0;
  std::vector<std::byte>* memory = nullptr;     // ours, that has the data; null: UCX's
  std::chrono::steady_clock::time_point since;  // when it came; no receive has met it
};

// How far a request is.
struct Progress {
  size_t bytes = 0;  // in all
  size_t moved = 0;  // bytes so far; the next are in iov `iov`, from byte `within` on
  int32_t iov = 0;
  size_t within = 0;
  uint64_t granted = 0;  // the receiver's number
  int64_t order = 0;     // this and the next two are the listener's
  int32_t stage = 0;
  int64_t window = 0;
  uint64_t turn = 0;      // of its last chunk: chunks are counted
  int32_t passed_by = 0;  // ticks for which sends of a lower order went first
};

// A send or a receive.
struct Request : RowMessage, Progress {
  uint64_t number = 0;  // no other request has had it
  Peer* peer = nullptr;
  std::list<Request>* list = nullptr;  // the list that it is in
  std::list<Request>::iterator self;
  Lease lease;      // of a send whose rows the receiver may read from where they are
  Arrival offer;    // the offer that a receive has met
  Reading reading;  // what a receive reads of the offer
  Status given_up;  // why it was given up, while it is read
};

// A connection from one of this process's NIC workers to one of the peer's: one of the two.
struct Endpoint {
  Endpoint(Peer* of, int32_t ours, int32_t theirs, Connection which, uint32_t in)
      : peer(of), nic_worker(ours), their_nic_worker(theirs), connection(which), generation(in) {}

  Connections* connections = nullptr;
  Peer* const peer;
  const int32_t nic_worker, their_nic_worker;
  const Connection connection;
  const uint32_t generation;
  ucp_ep_h handle = nullptr;
  bool failed = false;
  bool retired = false;                         // an endpoint of a later generation has replaced it
  bool flushed = false;                         // since it was retired
  std::chrono::steady_clock::time_point asked;  // for an answer, first since the last arrival; zero: not asked
  uint64_t sent = 0;
  uint64_t arrived = 0;
  int64_t in_flight = 0;      // messages that UCX has and has not completed
  int64_t chunk_bytes = 0;    // of the chunks that were sent
  int64_t marked = 0;         // of those, what is to be acknowledged
  int64_t acknowledged = 0;   // of that, what has been
  int32_t stalled_ticks = 0;  // ticks in a row at which it was full, or not acknowledged, and nothing had come of it
  std::list<Arrival> held;    // messages that arrived out of order
};

// A message to send, in memory of its own. UCX never has memory of the caller, who owns it again as soon as a request
// is given up.
struct Outgoing {
  Connections* connections = nullptr;
  Peer* peer = nullptr;
  std::shared_ptr<Endpoint> endpoint;
  Header header{};
  std::vector<std::byte> data;  // keeps its size
  size_t length = 0;
  std::list<Outgoing>::iterator self;
};

// A message, or the news that the process was lost or the connection renewed.
struct Incoming {
  std::vector<std::byte> data;
  Status lost;
  bool renewed = false;  // not lost
  bool ready = false;    // all parts have arrived
};

struct Peer {
  int32_t process = 0;
  bool joined = false;
  bool gone = false;  // for good, until it joins again
  Status why;         // it was lost, last
  // Whether the handler has been told of the loss, since something was last sent; whether a message of the peer has
  // arrived, and whether it was greeted, in this generation.
  bool told = true;
  bool heard = false;
  bool heard_lately = false;  // a message has arrived since the last tick
  bool greeted = false;
  bool readable = false;   // whether this process can read the peer's memory
  bool reads = false;      // whether the peer can read ours, as it has said
  bool contacted = false;  // whether this process has contacted it
  bool ring_tried = false;
  Addresses addresses;
  RingReader from;  // ring by which it sends to this process
  RingWriter to;    // ring by which this process sends to it
  uint32_t generation = 0;
  std::vector<std::shared_ptr<Endpoint>> endpoints;  // by this process's NIC worker, the peer's, and Connection
  std::list<std::shared_ptr<Endpoint>> retired;      // oldest first

  std::list<Arrival> early;  // from a process that has not joined

  std::list<Request> waiting;    // sends, until it joins
  std::list<Request> offered;    // sends, until they are asked for
  std::list<Request> streaming;  // sends
  std::list<Request> receives;   // that nothing has met
  std::list<Request> filling;    // receives that have asked
  std::list<Request> reading;    // receives that the pool fills
  std::list<Arrival> unmet;      // rows, or offers, that no receive has met

  std::list<Outgoing> outbox;  // messages, until it joins
  std::list<Incoming> inbox;   // of which only the last may not be ready

  const std::shared_ptr<Endpoint>& endpoint(int32_t ours, int32_t theirs, Connection connection) const {
    const size_t pair = static_cast<size_t>(ours) * addresses.nic_workers.size() + static_cast<size_t>(theirs);
    return endpoints[pair * std::size(kConnections) + static_cast<size_t>(connection)];
  }
};

// A transport's state that its parts share.
struct TransportParts {
  const Library* library = nullptr;
  Secret secret{};
  int32_t process = 0;
  uint64_t incarnation = 0;
  ReadProbe read_probe{};
  std::vector<std::unique_ptr<NicWorker>> nic_workers;
  std::vector<Peer> peers;
  TransportCounters counters;             // the thread's
  int64_t in_flight = 0;                  // operations that UCX will call back about
  Reused<std::vector<std::byte>> memory;  // of the data of arrivals through rings, until they are released

  void Release(const Arrival& arrival) {
    if (arrival.memory != nullptr) return memory.Return(arrival.memory);
    if (arrival.data != nullptr) library->ucp_am_data_release(arrival.nic_worker->worker(), arrival.data);
  }
  void ReleaseAll(std::list<Arrival>* arrivals) {
    for (const Arrival& arrival : *arrivals) Release(arrival);
    arrivals->clear();
  }
  std::string Name(const Peer& peer) const {
    const std::string& host = peer.addresses.host;
    return "process " + std::to_string(peer.process) + (host.empty() ? "" : " (" + host + ")");
  }
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_PEER_H_
