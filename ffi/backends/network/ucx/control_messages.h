// Declares ControlMessages, which sends and delivers the control messages of a transport, and reports lost processes.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_CONTROL_MESSAGES_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_CONTROL_MESSAGES_H_

#include <list>

#include "backends/network/ucx/connections.h"
#include "backends/network/ucx/peer.h"

namespace fastjax::network::ucx {

class ControlMessages {
 public:
  ControlMessages(TransportParts* parts, Connections* connections) : parts_(parts), connections_(connections) {}

  void Send(int32_t process, const void* data, size_t bytes);
  // Sends the peer the present generation, and whether this process can read its memory.
  void Hello(Peer* peer);

  // Takes over a part of a message.
  void OnArrival(Peer* peer, const Arrival& arrival);
  void OnJoined(Peer* peer);
  // Tells the handler that the process is lost, or that the connection to it was renewed.
  void Lost(Peer* peer, const Status& why, bool renewed = false);
  // Gives up what has not arrived whole. Messages that have are still delivered.
  void EndAll(Peer* peer);
  // Delivers to the handler what has arrived, in order; returns whether there was anything. Without a handler it is
  // kept.
  bool Deliver(Handler* handler);

 private:
  Incoming* Add(Peer* peer);

  TransportParts* const parts_;
  Connections* const connections_;
  std::list<Incoming> free_;
  int64_t incoming_ = 0;  // in all inboxes
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_CONTROL_MESSAGES_H_
