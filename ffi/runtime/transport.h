// Declares Transport: what backends ask of a network, which carries bytes between the processes of a job.
#ifndef FASTJAX_RUNTIME_TRANSPORT_H_
#define FASTJAX_RUNTIME_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "exchange/status.h"

namespace fastjax {

// A run of memory: what UCX calls an iov.
struct Iov {
  void* data;
  size_t bytes;
};

// The way of rows from, or to, a device of another process. Rails are the devices' numbers inside their processes: they
// choose the NIC.
struct Route {
  int32_t process;
  int32_t local_rail;
  int32_t remote_rail;
};

// Owner of sends and receives. The transport calls it on the transport's thread, and never from within a call of the
// transport's.
class Listener {
 public:
  virtual ~Listener() = default;
  // Called exactly once for each request, when it has ended.
  virtual void OnDone(int64_t cookie, const Status& status) = 0;
  // Called now and then while a long request moves, before its end.
  virtual void OnMoved(int64_t /*cookie*/) {}
  // Returns the listener's place among listeners: sends of a lower order go first at each NIC, and so do copies.
  virtual int64_t order() const { return 0; }
  // Returns the stage of a send. Of sends that could go on at a NIC, those of the earliest stage go first.
  virtual int32_t stage(int64_t /*cookie*/) const { return 0; }
  // Returns the window of a connection: the bytes of rows that it may have sent without an acknowledgement, if it is to
  // send more for this listener.
  virtual int64_t window() const { return std::numeric_limits<int64_t>::max(); }
};

// Rows to be sent or received as one message. Until its listener is called, the iovs and the memory that they name must
// stay as they are.
struct RowMessage {
  Route route{};
  uint64_t tag = 0;
  const Iov* iovs = nullptr;
  int32_t count = 0;
  Listener* listener = nullptr;
  int64_t cookie = 0;  // the listener's
};

// Handles what other processes do. The transport calls it on the transport's thread, and never from within a call of
// the transport's.
class Handler {
 public:
  virtual ~Handler() = default;
  // Called for a message from a process that knows the job's secret.
  virtual void OnMessage(int32_t process, const std::byte* data, size_t bytes) = 0;
  // Called when the process is gone, was restarted, or cannot be reached. Every request to or from it ends with this
  // status.
  virtual void OnLost(int32_t process, const Status& status) = 0;
  // Called when the connection to the process is made anew, since that process, or this one (then `why` is ok), gave up
  // requests. Those have ended; messages in flight, in either direction, may be lost.
  virtual void OnRenewed(int32_t process, const Status& why) = 0;
  // Called about ten times a second.
  virtual void OnTick(std::chrono::steady_clock::time_point now) = 0;
  // Called when the transport closes. All requests end soon, with this status. Messages that the handler sends in this
  // call still go out.
  virtual void OnClosed(const Status& why) = 0;
  // Whether the handler still needs the transport's thread. A closed transport runs posted tasks as long as it does.
  virtual bool Busy() const = 0;
};

// One thread drives a transport: the handler, listeners and posted tasks all run there, and all but the first group of
// methods may be called there only.
class Transport {
 public:
  virtual ~Transport() = default;

  // These may be called from any thread.
  virtual int32_t process() const = 0;    // this one's number in the job
  virtual int32_t processes() const = 0;  // of the job
  // To be called before the first message. The handler must outlive the transport.
  virtual void SetHandler(Handler* handler) = 0;
  // Runs `task` on the transport's thread, tasks in order. False if it never will: the transport is closed, and its
  // handler idle.
  virtual bool Post(std::function<void()> task) = 0;
  // Returns a hash of the bytes that only processes can compute that know the job's secret.
  virtual uint64_t KeyedHash(const void* data, size_t bytes) const = 0;
  // Returns "process 1 (host a, pid 71, 10.0.0.2)", or that there is no such process yet.
  virtual std::string Describe(int32_t process) const = 0;
  // Whether the process has published its addresses, and this one knows them.
  virtual bool HasJoined(int32_t /*process*/) const { return true; }
  // Returns why the process cannot be reached, as a sentence; empty if nothing is known to be wrong.
  virtual std::string Trouble(int32_t /*process*/) const { return {}; }

  // Copies the message and sends it, in order with other messages to that process. A process that has not joined yet
  // gets it when it does. What cannot be sent is reported by OnLost.
  virtual void SendMessage(int32_t process, const void* data, size_t bytes) = 0;

  // A send and the receive on the other side match by tag; several of one tag and route match in order. A receive is as
  // long as what is sent: one that would be longer writes nothing beyond its iovs, and it and one that is shorter end
  // with an error. Until the receive is there, a send of more than a few kilobytes does not move: receivers set the
  // pace.
  virtual void Send(const RowMessage& message) = 0;
  virtual void Receive(const RowMessage& message) = 0;

  // Asks the listener's receives that no message has met yet to end. Each request still ends exactly once.
  virtual void Cancel(Listener* listener) = 0;
  // Ends all requests with a process at once. The next message or request connects anew. Both handlers are told
  // (OnRenewed), since messages may be lost.
  virtual void Disconnect(int32_t process) = 0;
  // Asks the process over each connection made to it whether it is there: its transport answers, whatever its program
  // does.
  virtual void Probe(int32_t process) = 0;
  // Whether nothing has come over one of these connections since, for longer than an answer takes.
  virtual bool Silent(int32_t process) const = 0;
  // Throws away what arrived, or arrives soon, without a receive: messages whose tag agrees in the bits of mask.
  virtual void Drop(uint64_t tag, uint64_t mask) = 0;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_TRANSPORT_H_
