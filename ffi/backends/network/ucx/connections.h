// Declares Connections, the connections of a transport. A connection is made when it is first used, and made anew when
// it fails or when requests that use it are given up.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_CONNECTIONS_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_CONNECTIONS_H_

#include <cstdint>
#include <list>
#include <vector>

#include "backends/network/ucx/peer.h"

namespace fastjax::network::ucx {

// Both sides count how often their connection was lost or ended (the generation). Every header has the count, and the
// side that is behind catches up. What belongs to an earlier generation is dropped when it arrives. Each generation has
// its own endpoints: a TCP connection that was cut off retries only after as long a time as it was cut off, a new one
// at once.
//
// Endpoints that have retired stay open for some generations more. UCX pairs the endpoints of two workers by how many
// each has made, to share connections: the peer's present one may be the pair of an old one of ours, and would fail
// with it. And in UCX 1.22, an endpoint that is closed while TCP has something of it to send is used after it has been
// freed.
class Connections {
 public:
  struct Failure {
    Peer* peer;
    ucs_status_t status;
  };

  explicit Connections(TransportParts* parts) : parts_(parts) {}

  // Returns a message for the caller to fill in: tag, rows and number of the header, and the data. It goes by the
  // connection of its kind, unless the caller says another one.
  Outgoing* Compose(Kind kind, size_t length);
  // Sends it in the peer's present generation, and owns it again. If sending fails, so does the endpoint.
  void Send(Peer* peer, int32_t nic_worker, int32_t their_nic_worker, Outgoing* outgoing);
  // Answers what has arrived, from where it arrived.
  void Answer(Peer* peer, const Arrival& answered, Kind kind, Connection connection, uint64_t tag);
  // Move a message to a list of the caller's for later, and back.
  void Keep(Outgoing* outgoing, std::list<Outgoing>* in) { Move(in, &composing_, outgoing->self); }
  Outgoing* TakeBack(std::list<Outgoing>* in) { return Move(&composing_, in, in->begin()); }
  void Discard(std::list<Outgoing>* in) { free_.splice(free_.end(), *in); }

  // Makes both connections between two NIC workers, so that UCX reports it if the process at the other end
  // dies. Both sides make as many in the same order, since UCX pairs them so.
  void Connect(const Peer& peer, int32_t nic_worker, int32_t their_nic_worker);
  // Begins a generation: from now on messages belong to it, and use endpoints of its own.
  void Begin(Peer* peer, uint32_t generation);

  // Returns the peers whose endpoints have failed, once each. Those are closed when the next generation begins.
  //
  // A process that ends closes all its connections, and what it sent last may still be in one of them when another one
  // fails. So a failure counts when all connections with the peer have failed, when those that have not are quiet for a
  // second, or after three.
  std::vector<Failure> TakeFailures();
  // To be called once in each Loop::kTick.
  void Tick();

  // Begins to send all messages in flight; flushing() counts those that have not been sent.
  void Flush();
  int64_t flushing() const { return flushing_; }

 private:
  void Connect(Endpoint* endpoint);
  void Fail(Endpoint* endpoint, ucs_status_t status);
  void Retire(const std::shared_ptr<Endpoint>& endpoint);
  template <typename Condition>
  void CloseRetired(Peer* peer, Condition condition);
  void Close(const std::shared_ptr<Endpoint>& endpoint);
  void Finish(Outgoing* outgoing, ucs_status_t status);

  TransportParts* const parts_;
  std::list<Outgoing> free_, composing_, sent_;
  struct Failed {
    std::shared_ptr<Endpoint> endpoint;
    ucs_status_t status;
    int32_t quiet = 0;  // ticks since then, or since the peer was last heard
    int32_t age = 0;    // ticks since then
  };
  std::vector<Failed> failed_;
  bool broken_ = false;  // some that have retired
  int64_t flushing_ = 0;
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_CONNECTIONS_H_
