// Declares the sends and receives of rows of a transport, and how they are matched.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_ROW_TRANSFERS_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_ROW_TRANSFERS_H_

#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/network/ucx/connections.h"
#include "backends/network/ucx/loop.h"
#include "backends/network/ucx/peer.h"

namespace fastjax::network::ucx {

// A short send goes as it is. A longer one is offered, asked for by the receive that it meets, and then sent in chunks.
// UCX has all that, with tags and a rendezvous of its own, but a rendezvous can be ended only together with its
// endpoint (see Connections); and here rows meet by process and tag, only what proves to come from the job meets
// anything, and every length is checked before a byte is written. Over TCP, UCX copies rows as often. What goes in
// chunks shares a connection; listeners of a lower order go before others at each NIC, as do earlier stages of one
// listener.
//
// UCX and TCP take megabytes before they leave, and nothing that comes later can pass them. So no more chunks are sent
// by a connection while as many bytes of it as a window has are not acknowledged, nor through a NIC while twice as many
// are not for each send of the earliest stage. Then few stages meet at a NIC, and one that is slow to receive holds up
// nobody else.
class RowTransfers {
 public:
  // `wake` is called on other threads when there is something to do.
  RowTransfers(TransportParts* parts, Connections* connections, std::function<void()> wake)
      : parts_(parts), connections_(connections), wake_(std::move(wake)) {}

  void Send(const RowMessage& message);
  void Receive(const RowMessage& message);
  void Cancel(const Listener* listener);
  void Drop(uint64_t tag, uint64_t mask);

  // Takes over an arrival.
  void OnArrival(Peer* peer, const Arrival& arrival);
  void OnJoined(Peer* peer);
  // Ends every request with the process; those that the pool reads, when it has read them.
  void EndAll(Peer* peer, const Status& why);
  // Throws away rows that no receive has met for an hour. They came later than the process remembers which to drop.
  void Expire(Clock::time_point now);
  // Sends what there is room for, of the earliest launch at each NIC; returns whether there was any.
  bool Pump();
  // Finds connections that are stalled, which do not hold up other launches, and lets sends that have been held up for
  // long send a little. To be called about ten times a second.
  void FindStalled();
  // Reads what is short, and ends what has been read; returns whether there was anything.
  bool TakeRead();
  // Whether there is something for TakeRead, and whether anything is being read.
  bool HasRead();
  bool reading() const { return reading_ > 0; }
  // Tells listeners; returns whether there was anything to tell.
  bool Deliver();
  // Requests that are being sent or received.
  bool busy() const { return busy_ > 0; }

 private:
  struct Done {
    Listener* listener;
    int64_t cookie;
    Status status;
  };
  // What is to be sent through a NIC worker: the lowest order, of that the earliest stage, and how many of that there
  // are; and whether anything has been in this pass.
  struct Nic {
    int64_t first = std::numeric_limits<int64_t>::max();
    int32_t stage = 0;
    int32_t sends = 0;
    bool sent = false;
  };
  struct Rule {
    uint64_t tag, mask;
    Clock::time_point until;
  };

  // Makes a request of that list of the peer's. Null, and the listener is to be told, if there is no such peer.
  Request* Make(std::list<Request> Peer::* list, const RowMessage& message);
  Request* Find(uint64_t number, const std::list<Request>* list) const;
  Status Unreachable(int32_t process) const;
  // That of its rows.
  Endpoint* EndpointOf(const Request& request) const;
  void Connect(const Request& request);
  void Advance(Request* request, std::list<Request>* to);
  void Start(Request* send);
  void FindFirst();
  bool SendOverdue();
  bool GoesFirst(const Request& send) { return send.order <= NicOf(send).first; }
  Nic& NicOf(const Request& send) { return nics_[static_cast<size_t>(EndpointOf(send)->nic_worker)]; }
  void FindNext();
  void OnAck(const Peer& peer, const Arrival& arrival);
  void CountUnacknowledged();
  // Whether UCX and the connection take another chunk; and whether the windows do, too.
  bool IsFree(const Request& send) const;
  bool CanSend(const Request& send) const;
  void SendChunk(Request* send);
  void Meet(Request* receive, const Arrival& arrival);
  void OnGrant(Peer* peer, const Header& header);
  void OnTaken(Peer* peer, const Header& header);
  void OnChunk(Peer* peer, const Arrival& arrival);
  void Read(Request* receive, const Arrival& arrival);
  void WasRead(Request* receive);
  void ReadDone(Request* receive);
  void Answer(Peer* peer, const Arrival& answered, Kind kind, uint64_t tag) {
    connections_->Answer(peer, answered, kind, Connection::kControl, tag);
  }
  void TurnAway(Peer* peer, const Arrival& arrival);
  void End(Request* request, Status status);
  bool Dropped(uint64_t tag);

  TransportParts* const parts_;
  Connections* const connections_;
  const std::function<void()> wake_;
  std::list<Request> free_;
  std::vector<Request*> slots_;          // by the low bits of their numbers
  std::vector<Nic> nics_;                // by NIC worker
  std::vector<Request*> next_;           // that may be sent
  std::vector<int64_t> unacknowledged_;  // by NIC worker: bytes, without those that are stalled
  uint64_t turns_ = 0;
  uint64_t made_ = 0;
  int64_t busy_ = 0;
  int64_t reading_ = 0;
  std::mutex mutex_;
  std::vector<Request*> read_;   // by the pool
  int64_t unread_ = 0;           // that the pool has not read yet
  int64_t unread_large_ = 0;     // of those, such as take long
  size_t read_since_wake_ = 0;   // bytes since the thread was woken
  std::vector<Request*> taken_;  // the thread's own, as are these
  std::vector<Request*> short_;  // that it reads itself
  std::vector<Reading*> readings_;
  std::deque<Rule> rules_;
  std::vector<Done> done_, telling_;
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_ROW_TRANSFERS_H_
