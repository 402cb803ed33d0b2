// Declares the connections of a wire. A connection is made when it is first used, and made anew when it fails or when
// what it carried is given up.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_LINKS_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_LINKS_H_

#include <cstdint>
#include <list>
#include <vector>

#include "backends/network/ucx/peer.h"

namespace fastjax::network::ucx {

// Both sides count how often they have lost or ended what is between them (the generation), say so in every header, and
// whoever is behind catches up. What belongs to an earlier generation is dropped when it arrives. Each generation has
// endpoints of its own: a TCP connection that was cut off for a while tries again only after as long a while, a new one
// at once.
//
// Endpoints that have retired stay open for some generations more. UCX pairs the endpoints of two workers by how many
// each has made, to share connections: the peer's present one may be the pair of an old one of ours, and would fail
// with it. And in UCX 1.22, an endpoint that is closed while TCP has something of it to send is used after it has been
// freed.
class Links {
 public:
  struct Failure {
    Peer* peer;
    ucs_status_t status;
  };

  explicit Links(WireParts* parts) : parts_(parts) {}

  // A outgoing to fill in: kind, tag, rows and number of the header, and the data.
  Outgoing* Compose(Kind kind, size_t length);
  // Sends it in the peer's present generation; afterwards it is ours again. If that fails, the endpoint has.
  void Send(Peer* peer, int32_t nic_worker, int32_t their_nic_worker, Outgoing* outgoing);
  // Keeps it for later, in a list of the caller's; and takes it back.
  void Keep(Outgoing* outgoing, std::list<Outgoing>* in) { Move(in, &composing_, outgoing->self); }
  Outgoing* TakeBack(std::list<Outgoing>* in) { return Move(&composing_, in, in->begin()); }
  void Discard(std::list<Outgoing>* in) { free_.splice(free_.end(), *in); }

  // So that we are told if what is at the other end dies.
  void Connect(Endpoint* endpoint);
  // What is sent and arrives from now on belongs to that generation, and goes through endpoints of its own.
  void Begin(Peer* peer, uint32_t generation);

  // Whose endpoints have failed, once each. They are closed when the next generation begins.
  std::vector<Failure> TakeFailures();

  // Begins to send all messages in flight; flushing() counts those that have not been sent.
  void Flush();
  int64_t flushing() const { return flushing_; }

 private:
  void Fail(Endpoint* endpoint, ucs_status_t status);
  void Retire(const std::shared_ptr<Endpoint>& endpoint);
  void CloseOld(Peer* peer);
  void CloseBroken();
  void Close(const std::shared_ptr<Endpoint>& endpoint);
  void Finish(Outgoing* outgoing, ucs_status_t status);

  WireParts* const parts_;
  std::list<Outgoing> free_, composing_, sent_;
  struct Failed {
    std::shared_ptr<Endpoint> endpoint;
    ucs_status_t status;
  };
  std::vector<Failed> failed_;
  bool broken_ = false;  // some that have retired
  int64_t flushing_ = 0;
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_LINKS_H_
